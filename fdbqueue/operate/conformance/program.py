"""A program of the user's own that answers a line with a line, within a time limit.

Its pipes do not block this process: a program that does not read, or that writes without end, costs its time
limit and a bounded memory.
"""

import errno
import os
import selectors
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

from fdbqueue.core import limits
from fdbqueue.core.runtime import Runtime

_CHUNK_BYTES = 65_536
_KILLED_WITHIN_S = 5.0


class ProgramFailed(Exception):
    """The program gives no answer; the text says why. It is killed."""


class Program:
    """A running program. A context manager that kills it."""

    def __init__(self, argv: Sequence[str], timeout_s: float, runtime: Runtime) -> None:
        self._timeout_s = timeout_s
        self._runtime = runtime
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except ValueError as error:  # a name with a NUL, or one without bytes: no file has it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        self._stdin, self._stdout = _opened(self._process.stdin), _opened(self._process.stdout)
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(_KILLED_WITHIN_S)
        for pipe in (self._stdin, self._stdout):
            pipe.close()

    def answer(self, line: bytes) -> bytes:
        """Its answer to one line; both end in a newline. Raises: ProgramFailed."""
        until = self._runtime.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._stdout, selectors.EVENT_READ)
            ready.register(self._stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._heard:
                left_s = until - self._runtime.monotonic()
                if left_s <= 0:
                    raise ProgramFailed(f"it has not answered within {self._timeout_s:g} s")
                for key, _ in ready.select(left_s):
                    if key.fileobj is self._stdout:
                        self._hear()
                    elif not (line := self._say(line)):
                        ready.unregister(self._stdin)
        answer, _, self._heard = self._heard.partition(b"\n")
        return answer

    def _say(self, line: bytes) -> bytes:
        """Write a part of the line. Returns the rest."""
        try:
            return line[os.write(self._stdin.fileno(), line[:_CHUNK_BYTES]) :]
        except BlockingIOError:  # there was room for less than a page
            return line
        except BrokenPipeError:
            raise self._ended() from None

    def _hear(self) -> None:
        heard = os.read(self._stdout.fileno(), _CHUNK_BYTES)
        if not heard:
            raise self._ended()
        self._heard += heard
        if len(self._heard) > limits.CONFORMANCE_ANSWER_BYTES_MAX:
            raise ProgramFailed(f"its answer has more than {limits.CONFORMANCE_ANSWER_BYTES_MAX:,} bytes")

    def _ended(self) -> ProgramFailed:
        try:
            status = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            return ProgramFailed("it has closed its output")
        return ProgramFailed(f"it has ended with status {status}")


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # as Popen was asked for it
    return pipe
