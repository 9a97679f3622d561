"""The fields of log records that name a task: `queue`, `task_id` and `attempt`.

A worker sets them for the thread of a handler, so that the lines of the handler's own code have them, too.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

from fdbqueue.task import Task

Fields = tuple[str, str, int]

NO_TASK: Fields = ("", "", 0)
_fields: ContextVar[Fields] = ContextVar("fdbqueue_log_fields", default=NO_TASK)


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
