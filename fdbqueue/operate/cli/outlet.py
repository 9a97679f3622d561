"""The outputs of the commands of a fleet, on our standard output; on a pipe, each is read before the next.

A pipe accepts the outputs of many tasks before its reader reads the first. If those tasks were acked then, a
reader that ends (`head -1`) would lose the outputs of all. So a task is acked when its output was read.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.logs import ERASE_LINE
from fdbqueue.operate.cli.output import LineWriter

STDOUT, STDERR = 1, 2
PIECE_BYTES = 65_536


class Outlet:
    """Standard output, which all threads and processes of a fleet share."""

    def __init__(self) -> None:
        self._is_pipe = stat.S_ISFIFO(os.fstat(STDOUT).st_mode)
        self._lock = RealRuntime.lock()

    def pass_on(self, out: IO[bytes], err: IO[bytes]) -> None:
        """Write the outputs of a command; if standard output is a pipe, wait until it was read.

        Raises ReaderGone for output that was not read, OSError for output that was not written.
        """
        pass_on_errors(err)
        if not self._is_pipe:
            pass_on(out, STDOUT)
        elif _size_of(out):
            with self._turn():
                pass_on(out, STDOUT)
                LineWriter(STDOUT, _nothing).is_drained(None)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Keep other outputs of this fleet out of the pipe."""
        with self._lock:  # a record lock keeps out other processes, but not threads of this one
            fcntl.lockf(STDOUT, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(STDOUT, fcntl.LOCK_UN)


def pass_on(file: IO[bytes], descriptor: int) -> None:
    """Write a whole file, of any size, to one of our descriptors. Raises OSError.

    On a terminal, `pass_on` erases the progress bar first. It adds a newline to a last line without one: the
    next drawing of the bar would erase that line.
    """
    if not _size_of(file):
        return
    before, after = (ERASE_LINE, _line_end(file)) if os.isatty(descriptor) else (b"", b"")
    file.seek(0)
    piece = before + file.read(PIECE_BYTES)
    while piece:
        piece = piece[os.write(descriptor, piece) :] or file.read(PIECE_BYTES)
    if after:
        os.write(descriptor, after)


def _line_end(file: IO[bytes]) -> bytes:
    """Return the newline that the last line of a file lacks, if any."""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def pass_on_errors(err: IO[bytes]) -> None:
    """Write the standard error of a command to ours, unless that is closed."""
    with suppress(OSError):
        pass_on(err, STDERR)


def _size_of(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)


def _nothing() -> None: ...
