"""The loggers of this package: their records are visible in any handler of a program, and name their task.

A worker sets the task for the thread of a handler, so the lines of the handler's own code name it, too.

A *trouble* is an error that a background thread survives. Threads that keep leases alive end for no error.
The log gets each trouble at once with its traceback, and then once a minute with its count. `LayoutNewer` is
told once for each queue, without a traceback: its text says all, and only a newer release ends it. So is an
error that does not heal in this process, once for all of its databases, whatever fails because of it.

An error may refuse to be formatted: `text_of` and `traceback_of` have an answer for each one.

A background thread goes on after an exception of a class in SURVIVED. Every other exception ends it:
KeyboardInterrupt, gevent's GreenletExit, and the command line's Interrupted.
"""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from math import inf
from pkgutil import resolve_name
from types import TracebackType
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.errors import LayoutNewer, heals
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.task import Task
from fdbqueue.core.visible import SURVIVED, shortened, text_of, visible


def traceback_of(error: BaseException, frames: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except SURVIVED as failure:
        lines = _lines_of(frames)
        return f"{lines}{type(error).__name__}: {text_of(error)} (not formatted: {type(failure).__name__})\n"


def _lines_of(frames: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_tb(frames))
    except SURVIVED:
        return ""


_unhealed: dict[tuple[int, type[BaseException], str], object] = {}
"""The errors that do not heal, of this process and of those that it was forked from."""


@dataclass
class _Trouble:
    untold: int
    tell_at: float


class Troubles:
    """The troubles of one part of a process. Two are the same if type, raising line and `title` agree."""

    # One line a minute, not one until the next success: under load, every other round succeeds.

    def __init__(self, runtime: Runtime, is_away: Callable[[BaseException], bool] = lambda _: False) -> None:
        """`is_away`: true of the error of a database that is away. Its traceback explains nothing."""
        self._runtime = runtime
        self._is_away = is_away
        self._lock = runtime.lock()
        self._met: dict[object, _Trouble] = {}

    def met(self, log: logging.Logger, title: str, error: BaseException) -> None:
        """Log the error, unless the last minute has. Never fails."""
        # A log's handler may raise, and there is no other place to report to.
        with suppress(*SURVIVED):
            which: object = _place_of(error)
            again_s = limits.TROUBLE_TOLD_EVERY_S
            told: object = title
            if isinstance(error, LayoutNewer):  # one place raises it for all queues
                which, again_s = error.name, inf
            elif not heals(error) and not self._is_first(error):
                return
            count = self._count((told, type(error), which), again_s)
            if count is not None:
                self._tell(log, title, error, count)

    def _is_first(self, error: BaseException) -> bool:
        """True for the first error of that text in this process, of whichever database."""
        mine, key = object(), (self._runtime.process_id(), type(error), text_of(error))
        return _unhealed.setdefault(key, mine) is mine  # atomic: two threads may meet it at once

    def _count(self, key: object, again_s: float) -> int | None:
        """The count since the last log line; None if the trouble is not to be logged now."""
        now = self._runtime.monotonic()
        with self._lock:
            met = self._met.get(key)
            if met is None:
                if len(self._met) >= limits.TROUBLES_KEPT:
                    del self._met[next(iter(self._met))]
                self._met[key] = _Trouble(0, now + again_s)
                return 0
            met.untold += 1
            if now < met.tell_at:
                return None
            count, met.untold, met.tell_at = met.untold, 0, now + again_s
            return count

    def _tell(self, log: logging.Logger, title: str, error: BaseException, count: int) -> None:
        name, text = type(error).__name__, text_of(error)
        if not heals(error):  # nothing is tried again, as many a title says
            log.error("%s: %s", name, text)
        elif count:
            log.warning("%s (%d more times): %s: %s", title, count, name, text)
        elif self._is_away(error) or isinstance(error, LayoutNewer):
            log.warning("%s: %s: %s", title, name, text)
        else:
            log.error("%s: %s: %s", title, name, text, exc_info=(type(error), error, error.__traceback__))


def _place_of(error: BaseException) -> tuple[str, int]:
    frames = error.__traceback__
    if frames is None:
        return "", 0
    while frames.tb_next is not None:
        frames = frames.tb_next
    return frames.tb_frame.f_code.co_filename, frames.tb_lineno


Fields = tuple[str, str, int]
_at: ContextVar[tuple[str, Task | None]] = ContextVar("fdbqueue_log_task", default=("", None))
_REDACTION = "fdbqueue.core.redaction:redaction_of"
"""A name, imported at its first use: most logs hide nothing."""
MESSAGE_LENGTH_MAX = 10_000
TRACEBACK_LENGTH_MAX = 50_000


class LogFields(logging.Filter):
    """Gives log records the fields `queue`, `task_id` and `attempt` of the task that their thread works at.

    Outside of an attempt they are "", "" and 0. A field that the record has already stays. The loggers of
    this package have this filter. Add it to the handlers of your program for the lines of your own code.
    """

    def __init__(self, redact: Any = None) -> None:
        """`redact`, as of a dashboard: parts of the task that the records of the handler do not tell.

        Raises: InvalidArgument.
        """
        super().__init__()
        self._redaction = None if redact is None else resolve_name(_REDACTION)(redact)

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns true: no record is left out."""
        given = vars(record)
        queue, task = _at.get()
        given.setdefault("queue", queue)
        given.setdefault("task_id", "" if task is None else task.id)
        given.setdefault("attempt", 0 if task is None else task.attempts)
        if self._redaction is not None and task is not None:
            made_visible(record)
            hide = self._redaction.texts(task)
            record.msg, record.exc_text = hide(record.msg), record.exc_text and hide(record.exc_text)
        return True


def fields_in(record: logging.LogRecord) -> Fields:
    """The fields of a record that has passed a LogFields."""
    given = vars(record)
    return given["queue"], given["task_id"], given["attempt"]


def enter(queue: str, task: Task) -> Token[tuple[str, Task | None]]:
    """Begin to name `task` in the records of this thread. Return the token for `leave`."""
    return _at.set((queue, task))


def leave(token: Token[tuple[str, Task | None]]) -> None:
    """Name the task, if any, that was named before `enter`."""
    _at.reset(token)


@contextmanager
def about(queue: str, task: Task) -> Iterator[None]:
    """Name `task` in the records of this thread, until the block ends."""
    token = enter(queue, task)
    try:
        yield
    finally:
        leave(token)


_log_fields = LogFields()


def logger(name: str) -> logging.Logger:
    """The logger of that name. Texts from data in its records have control characters as escapes, and its
    records have the fields of the task that their thread works at.
    """
    found = logging.getLogger(name)
    found.addFilter(made_visible)
    found.addFilter(_log_fields)
    return found


def made_visible(record: logging.LogRecord) -> bool:
    """Escape control characters in the record. A line break stays in its traceback only.

    A long text is cut: an error of a handler may have a text of megabytes, and each attempt logs it.
    """
    record.msg, record.args = visible(shortened(_message_of(record), MESSAGE_LENGTH_MAX)), ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not record.exc_text:
        lines = traceback_of(error, error.__traceback__).rstrip()
        record.exc_text = visible(shortened(lines, TRACEBACK_LENGTH_MAX), keep="\n")
    return True


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except SURVIVED as error:  # a value's `__str__` raises, or it does not fit
        return f"{record.msg} (its values cannot be shown: {type(error).__name__})"
