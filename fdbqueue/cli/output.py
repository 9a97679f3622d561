"""Standard output as something that says how much of it was written.

A buffered stream would accept lines that never reach the reader. This writes straight to the descriptor,
and only when there is room: a pipe that polls writable takes PIPE_BUF bytes without blocking.
"""

import os
import select
from collections.abc import Callable

# A slow reader is waited for with empty hands: this long a held item waits for room before it goes back.
_PATIENCE_MS = 200


class ReaderGone(Exception):
    """Nobody reads standard output any more."""


class LineWriter:
    def __init__(self, descriptor: int, check: Callable[[], None]) -> None:
        """`check` is called now and then by a line that waits for room in its middle; it may raise."""
        self._descriptor = descriptor
        self._check = check
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def is_read(self) -> bool:
        """Whether there is still somebody who could read."""
        try:
            self._has_room(0)
        except ReaderGone:
            return False
        return True

    def wait(self) -> None:
        """Until there is room. Raises ReaderGone."""
        self._has_room(None)

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
        """Write the line, however long it takes."""
        self.wait()
        self.write(line)

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
