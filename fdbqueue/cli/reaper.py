"""A process that outlives a worker by a moment: it kills what the worker had running when it died.

A worker that is killed cannot end its commands, and a command that goes on would do its work beside the next
attempt at the same task. So the worker tells a small process, through a pipe, which process groups it has
begun and which have ended; the pipe's end is the worker's.

It may die after it has started a command and before it can tell of it. So it tells before which files the
command is about to have for its standard input and outputs: temporary ones, nobody else's. A new process
holds the worker's end of the pipe until it has those files and a process group of its own; so when the pipe
has ended, every command can be found by them (where there is /proc, and unless it has replaced all three in
the moment between).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

# Standard library only, and nothing of the site: it starts in a few milliseconds and is small.
_PROGRAM = """
import os, signal, sys

def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass

def has_one_of(files, process):
    for number in range(3):
        try:
            found = os.stat(f"/proc/{process}/fd/{number}")
        except OSError:
            continue
        if f"{found.st_dev}:{found.st_ino}" in files:
            return True

told = set()
for line in sys.stdin:
    {"+": told.add, "-": told.discard}[line[0]](line[1:].strip())
files = {name for name in told if ":" in name}
for group in told - files:
    kill(int(group))
for process in os.listdir("/proc") if files and os.path.isdir("/proc") else ():
    if process.isdigit() and has_one_of(files, process):
        try:
            kill(os.getpgid(int(process)))
        except ProcessLookupError:
            pass
"""


class Reaper:
    def __init__(self) -> None:
        # A session of its own, and no descriptor of ours: what ends the worker does not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
        )

    @contextmanager
    def watching(self, files: Sequence[IO[Any]]) -> Iterator[Callable[[int], None]]:
        """While in here, the death of this process is that of the command that has these `files`, and of the
        process group that the function is called with.
        """
        told = [_name(file) for file in files]
        self._tell("+", told)

        def began(group: int) -> None:
            told.append(str(group))
            self._tell("+", told[-1:])

        try:
            yield began
        finally:
            self._tell("-", told)

    def _tell(self, sign: str, names: Sequence[str]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody has killed it: then there is nobody to tell
            self._process.stdin.write("".join(f"{sign}{name}\n" for name in names).encode())
            self._process.stdin.flush()


def _name(file: IO[Any]) -> str:
    found = os.fstat(file.fileno())
    return f"{found.st_dev}:{found.st_ino}"
