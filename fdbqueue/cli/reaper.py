"""A process that outlives a worker by a moment: it kills what the worker had running when it died.

A worker that is killed cannot end its commands, and a command that goes on would do its work beside the next
attempt at the same task. So the worker tells a small process, through a pipe, which process groups it has
begun and which have ended; the pipe's end is the worker's.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Standard library only, and nothing of the site: it starts in a few milliseconds and is small.
_PROGRAM = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    {"+": groups.add, "-": groups.discard}[line[0]](int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""


class Reaper:
    def __init__(self) -> None:
        # A session of its own, and no descriptor of ours: what ends the worker does not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
        )

    @contextmanager
    def watching(self, group: int) -> Iterator[None]:
        """While in here, the death of this process is that of the process group."""
        self._tell(f"+{group}")
        try:
            yield
        finally:
            self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody has killed it: then there is nobody to tell
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
