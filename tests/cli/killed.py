"""A program with running commands that kills itself, or is killed by the test."""

import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

from fdbqueue.operate.cli import execute

COMMAND = ["sleep", "1000"]


def killed_before_it_tells(name: str) -> None:
    """Die right after the start of a command."""
    _die_at_a_start(execute.make({"words": COMMAND}), name)


def killed_before_its_child(name: str) -> None:
    """Die in the same way, and leave a forked child, whose id it prints."""
    run = execute.make({"words": COMMAND})
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    print(child, flush=True)
    _die_at_a_start(run, name)


def _die_at_a_start(run: execute.Execute, name: str) -> None:
    popen = subprocess.Popen

    def and_die(*arguments: Any, **options: Any) -> None:
        popen(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    execute.subprocess.Popen = and_die  # type: ignore[attr-defined,misc]
    run(task(name))


def always_starting(name: str) -> None:
    """Start one command after another, until the test kills this process."""
    run = execute.make({"words": COMMAND})
    print("begun", flush=True)
    while True:
        threading.Thread(target=run, args=(task(name),)).start()


def task(name: str) -> Any:
    return SimpleNamespace(
        id=name, data="x", attempts=1, headers={}, result_ttl=None, lost=False, cancelled=False
    )
