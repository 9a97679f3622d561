"""Reaper: a process that outlives its worker by a moment, and kills the commands that the worker left.

A killed worker cannot end its commands. A command that goes on would work beside the next attempt at the same
task. So the worker writes to the reaper, through a pipe, each process group that it starts, and each that has
ended. The pipe ends when the worker dies.

The worker may die after it has started a command and before it has written the group. So it first writes the
names of the three temporary files that will be the standard input and outputs of the command. A new process
holds the worker's end of the pipe until it has those files and a group of its own. So when the pipe ends,
the reaper finds each command by its files, if there is /proc and the command has not replaced all three.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from fdbqueue.fleet.process import kept_from_children

# Only the standard library, without site packages: the process starts in milliseconds and is small.
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
        # In a session of its own, and without our descriptors: a signal that ends the worker does not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        kept_from_children.add(self._process.stdin.fileno())

    @contextmanager
    def watching(self, files: Sequence[IO[Any]]) -> Iterator[Callable[[int], None]]:
        """Within the block, if this process dies, the command with these `files` is killed.

        The yielded function adds a process group, which is killed, too.
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
        with suppress(BrokenPipeError):  # the reaper was killed: commands can no longer be watched
            self._process.stdin.write("".join(f"{sign}{name}\n" for name in names).encode())
            self._process.stdin.flush()


def _name(file: IO[Any]) -> str:
    found = os.fstat(file.fileno())
    return f"{found.st_dev}:{found.st_ino}"
