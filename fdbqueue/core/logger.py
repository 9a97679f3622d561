"""The loggers of this package: their records are visible in any handler of a program, and name their task.

A worker sets the task for the thread of a handler, so the lines of the handler's own code name it, too.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

from fdbqueue.core.task import Task
from fdbqueue.core.trouble import traceback_of
from fdbqueue.core.visible import SURVIVED, shortened, visible

Fields = tuple[str, str, int]
NO_TASK: Fields = ("", "", 0)
_fields: ContextVar[Fields] = ContextVar("fdbqueue_log_fields", default=NO_TASK)
MESSAGE_LENGTH_MAX = 10_000
TRACEBACK_LENGTH_MAX = 50_000


class LogFields(logging.Filter):
    """Gives log records the fields `queue`, `task_id` and `attempt` of the task that their thread works at.

    Outside of an attempt they are "", "" and 0. A field that the record has already stays. The loggers of
    this package have this filter. Add it to the handlers of your program for the lines of your own code.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns true: no record is left out."""
        given = vars(record)
        given.setdefault("queue", (fields := _fields.get())[0])
        given.setdefault("task_id", fields[1])
        given.setdefault("attempt", fields[2])
        return True


def fields_in(record: logging.LogRecord) -> Fields:
    """The fields of a record that has passed a LogFields."""
    given = vars(record)
    return given["queue"], given["task_id"], given["attempt"]


def enter(queue: str, task: Task) -> Token[Fields]:
    """Begin to name `task` in the records of this thread. Return the token for `leave`."""
    return _fields.set((queue, task.id, task.attempts))


def leave(token: Token[Fields]) -> None:
    """Name the task, if any, that was named before `enter`."""
    _fields.reset(token)


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
