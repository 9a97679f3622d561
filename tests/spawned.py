"""Processes that run a function of the tests, and may be killed at any moment.

Started afresh, never forked: FoundationDB's client does not survive a fork.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

PROGRAM = """
import importlib, json, sys
module, name, arguments = sys.argv[1:]
getattr(importlib.import_module(module), name)(*json.loads(arguments))
"""


class Crew:
    """Processes at one piece of work; `kill_one` puts another in the place of the one it kills."""

    def __init__(self) -> None:
        self.killed = 0
        self._random = Random()
        self._living: list[tuple[subprocess.Popen[bytes], tuple[Any, ...]]] = []

    def spawn(self, work: Callable[..., None], *arguments: Any) -> None:
        command = [sys.executable, "-c", PROGRAM, work.__module__, work.__name__, json.dumps(arguments)]
        self._living.append((subprocess.Popen(command, cwd=Path(__file__).parents[1]), (work, *arguments)))

    def kill_one(self) -> None:
        """SIGKILL; counted if that was what ended it."""
        process, again = self._living.pop(self._random.randrange(len(self._living)))
        process.kill()
        self.killed += process.wait() == -signal.SIGKILL
        self.spawn(*again)

    def kill_throughout(self, kills: int, progress: Callable[[], float], within_s: float = 300) -> None:
        """One at a time, evenly over the work: `progress` goes from zero to one."""
        until = time.monotonic() + within_s
        for kill in range(kills):
            while progress() < kill / (kills + 1):
                assert time.monotonic() < until, f"after {kill} kills nothing goes on"
                time.sleep(0.005)
            self.kill_one()

    def kill_after(self, is_time: Callable[[], bool], within_s: float = 300) -> None:
        until = time.monotonic() + within_s
        while not is_time():
            assert time.monotonic() < until, "nothing goes on"
            time.sleep(0.02)
        self.kill_one()

    def stall_one(self, seconds: float) -> None:
        """SIGSTOP, and after that time SIGCONT."""
        process, _ = self._random.choice(self._living)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def finish(self, within_s: float = 300) -> list[int]:
        """How each of them ended."""
        return [process.wait(within_s) for process, _ in self._living]

    def end(self) -> None:
        for process, _ in self._living:
            process.kill()
            process.wait()


@contextmanager
def crew() -> Iterator[Crew]:
    """No process of it is left behind."""
    made = Crew()
    try:
        yield made
    finally:
        made.end()
