"""The loggers of this package: their records are visible in any handler of a program, and name their task."""

import logging

from fdbqueue.log_fields import LogFields
from fdbqueue.trouble import SURVIVED, traceback_of
from fdbqueue.visible import visible

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
    """Escape control characters in the record. A line break stays in its traceback only."""
    record.msg, record.args = visible(_message_of(record)), ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not record.exc_text:
        record.exc_text = visible(traceback_of(error, error.__traceback__).rstrip(), keep="\n")
    return True


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except SURVIVED as error:  # a value's `__str__` raises, or it does not fit
        return f"{record.msg} (its values cannot be shown: {type(error).__name__})"
