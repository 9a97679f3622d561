"""Processes that run a function of the tests, and may be killed at any moment.

Started afresh, never forked: FoundationDB's client does not survive a fork.
"""

import json
import signal
import subprocess
import sys
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
    """Processes at one piece of work: `spawn` starts one, `kill_one` kills one and puts another in its place."""

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

    def finish(self, within_s: float) -> list[int]:
        """How each of them ended."""
        return [process.wait(within_s) for process, _ in self._living]

    def end(self) -> None:
        for process, _ in self._living:
            process.kill()
            process.wait()


@contextmanager
def crew() -> Iterator[Crew]:
    """Nobody of it is left behind."""
    made = Crew()
    try:
        yield made
    finally:
        made.end()
