"""Handlers that fork: each task names what its handler does, and raises if a child does not act alone."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from fdbqueue import Done, Hooks
from fdbqueue.core.signals import ENDING

ENDS_WITHIN_S = 60
_fork = multiprocessing.get_context("fork")


def square(number: int) -> int:
    return number * number


def in_pools() -> None:
    """The end of a block terminates the children of its pool."""
    for _ in range(3):
        with _fork.Pool(2) as pool:
            assert pool.map(square, range(10)) == [number * number for number in range(10)]


def in_an_executor() -> None:
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=_fork) as executor:
        assert list(executor.map(square, range(4))) == [0, 1, 4, 9]


def terminated() -> None:
    process = _fork.Process(target=time.sleep, args=(ENDS_WITHIN_S,))
    process.start()
    process.terminate()
    process.join(ENDS_WITHIN_S)
    status = process.exitcode
    process.kill()
    assert status == -signal.SIGTERM, status


def forked_and_signalled() -> None:
    """The child signals itself, with each signal that would stop a worker."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        child = os.fork()
        if not child:
            os.kill(os.getpid(), number)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number


def _exit_unless_default() -> None:
    found = [signal.getsignal(number) for number in ENDING]
    os._exit(0 if found == [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL] else 9)


def before_a_command() -> None:
    assert subprocess.call([sys.executable], preexec_fn=_exit_unless_default) == 0


def returning() -> None:
    """The child returns into its worker, as it does not exit."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0


def returning_from_an_effect() -> None:
    raise Done(lambda _: returning())


DEEDS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "in pools": in_pools,
    "in an executor": in_an_executor,
    "terminated": terminated,
    "forked and signalled": forked_and_signalled,
    "before a command": before_a_command,
    "returning": returning,
    "returning from an effect": returning_from_an_effect,
}


hooks = Hooks(succeeded=lambda _: returning())
_process_id = os.getpid()


def act(task: Any) -> None:
    DEEDS[task.data]()


async def act_on_a_loop(task: Any) -> None:
    """A child that returns here goes on with the loop, and with the tasks of the loop."""
    if os.getpid() != _process_id:
        os._exit(9)
    DEEDS[task.data]()
    await asyncio.sleep(0.5)
