"""A program with running commands that kills itself, or is killed by the test."""

import os
import signal
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

from fdbqueue.cli import execute

COMMAND = ["sleep", "1000"]


def killed_before_it_tells(name: str) -> None:
    """Die right after the start of a command."""
    run = execute.make({"words": COMMAND})
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
