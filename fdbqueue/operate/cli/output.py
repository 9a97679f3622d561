"""Standard output, with an answer to how much of it was written, and how much was read.

A buffered stream accepts lines that may never reach the reader. So does a pipe, which holds 64 kB. A
LineWriter writes to the descriptor itself, only when there is room: a pipe that polls writable accepts
PIPE_BUF bytes without blocking. Its `is_drained` says that a line was read.
"""

import fcntl
import os
import select
import stat
import sys
import termios
from collections.abc import Callable

from fdbqueue.core.runtime import RealRuntime

# A line waits for room in mid-write for this long before `check` is called.
_PATIENCE_MS = 200
# Most readers take a line within microseconds; a wait for a slow one must not use a processor.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 20e-6, 0.05
_UNREAD_BYTES = {stat.S_IFIFO: termios.FIONREAD, stat.S_IFSOCK: termios.TIOCOUTQ}
"""The ioctl that counts unread bytes, by the type of a descriptor; a file or a terminal has none."""


class ReaderGone(Exception):
    """The reader of standard output has closed it."""


class LineWriter:
    def __init__(self, descriptor: int, check: Callable[[], None]) -> None:
        """`check` is called now and then while half a line waits for room; it may raise."""
        self._descriptor = descriptor
        self._check = check
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._gone = select.poll()
        self._gone.register(descriptor, 0)  # errors only, not the readiness for a write
        self._counts_unread = _UNREAD_BYTES.get(stat.S_IFMT(os.fstat(descriptor).st_mode))

    def is_read(self) -> bool:
        """True if a reader still has the other end open."""
        return not self._is_gone(0)

    def wait(self) -> None:
        """Wait until there is room. Raises ReaderGone."""
        self._has_room(None)

    def is_drained(self, timeout_s: float | None) -> bool:
        """True if the reader has taken all bytes from a pipe, after a wait of up to `timeout_s` seconds.

        None waits for ever. A file or a terminal is always drained. Bytes of other processes in the same
        pipe count, too. Raises ReaderGone if the reader has gone and left some unread.
        """
        until_s = float("inf") if timeout_s is None else RealRuntime.monotonic() + timeout_s
        look_s = _FIRST_LOOK_S
        while self._unread_bytes():
            # In this order: once the reader has gone, the number of unread bytes is final.
            if self._is_gone(look_s):
                if self._unread_bytes():
                    raise ReaderGone
                return True
            if RealRuntime.monotonic() >= until_s:
                return False
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
        return True

    def write(self, line: bytes) -> bool:
        """Write the whole line; False if nothing was written because there is no room at present.

        Raises ReaderGone, or an OSError, for a line that was not, or not wholly, written.
        """
        if not self._has_room(_PATIENCE_MS):
            return False
        while line:
            line = line[self._write_some(line[: select.PIPE_BUF]) :]
            while line and not self._has_room(_PATIENCE_MS):
                self._check()
        return True

    def print(self, line: bytes) -> None:
        """Wait for room, then write the line."""
        self.wait()
        self.write(line)

    def _unread_bytes(self) -> int:
        if self._counts_unread is None:
            return 0
        counted = fcntl.ioctl(self._descriptor, self._counts_unread, bytes(4))
        return int.from_bytes(counted, sys.byteorder, signed=True)

    def _is_gone(self, within_s: float) -> bool:
        """True if the reader has closed the pipe, or closes it within the time."""
        if within_s < 0.001:  # poll() counts in milliseconds
            RealRuntime.sleep(within_s)
            within_s = 0
        return bool(self._gone.poll(within_s * 1000))

    def _has_room(self, timeout_ms: int | None) -> bool:
        ready = self._poll.poll(timeout_ms)
        if ready and ready[0][1] & (select.POLLERR | select.POLLHUP):
            raise ReaderGone
        return bool(ready)

    def _write_some(self, part: bytes) -> int:
        try:
            return os.write(self._descriptor, part)
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            error.filename = "standard output"
            raise
