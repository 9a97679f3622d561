"""The log of our programs: lines on standard error that begin with the time, and never hit the progress bar.

If the user's program has configured a logger, its handlers stay. Ours is only the handler of last resort,
which writes records that no other handler takes.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.logger import LogFields, fields_in, made_visible
from fdbqueue.core.visible import visible

LEVELS = ("debug", "info", "warning", "error")
LINE = "%(asctime)s %(levelname)s [%(process)d] %(message)s"
ERASE_LINE = b"\r\x1b[K"


class _Lines(logging.Formatter):
    """Ends the message of a handler's own record with its task. Our own messages name the task themselves."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # a method of the standard library
        line, (queue, task_id, attempt) = super().formatMessage(record), fields_in(record)
        if not task_id or task_id in line:
            return line
        return f"{line} (task {task_id} of {visible(queue)}, attempt {attempt})"


class _LastResort(logging.StreamHandler[TextIO]):
    """A handler that writes to the present `sys.stderr`, which a progress bar replaces for a while."""

    def __init__(self, redact: Sequence[str]) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Lines(LINE))
        self.addFilter(made_visible)  # also records of other loggers
        self.addFilter(LogFields(redact or None))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def checked_level(level: str) -> str:
    if not isinstance(level, str) or level not in LEVELS:
        raise InvalidArgument(name="log_level", wanted=f"one of {', '.join(LEVELS)}", got=level)
    return level


def checked_paths(redact: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(redact, list | tuple):
        raise InvalidArgument(name="redact", wanted="a list of paths", got=redact)
    LogFields(redact or None)
    return tuple(redact)


@contextmanager
def logging_at(level: str, redact: Sequence[str] = ()) -> Iterator[None]:
    """Log records of this level or above, until the block ends. `redact`: paths that they do not tell."""
    root, before = logging.getLogger(), logging.lastResort
    level_before = root.level
    root.setLevel(level.upper())
    logging.lastResort = _LastResort(redact)
    try:
        yield
    finally:
        root.setLevel(level_before)
        logging.lastResort = before


def write_above_the_bar() -> None:
    """Make each line of this process erase the progress bar of its supervisor, which then draws a new one."""
    if os.isatty(1):
        sys.stdout = _text_above(1, "strict")
    if os.isatty(2):
        sys.stderr = _text_above(2, "backslashreplace")


def _text_above(descriptor: int, errors: str) -> TextIO:
    binary = io.BufferedWriter(_Above(descriptor))
    return io.TextIOWrapper(binary, errors=errors, line_buffering=True)


class _Above(io.RawIOBase):
    """A terminal. One write is one system call, so nothing comes between the erasing and the line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: Any, /) -> int:
        line = bytes(text)
        return max(0, os.write(self._descriptor, ERASE_LINE + line) - len(ERASE_LINE))
