"""Matching: a choice of buried tasks by their last failure."""

from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text
from fdbqueue.core.task import Failure
from fdbqueue.tasks.failures import class_of

TEXT_BYTES_MAX = limits.FAILURE_MESSAGE_BYTES_MAX


@dataclass(frozen=True)
class Matching:
    """The tasks of a class of failure, None for all classes, with a text in their last failure."""

    error: str | None = None
    text: str | None = None

    @classmethod
    def of(cls, error: Any, text: Any) -> "Matching":
        return cls(
            None if error is None else _checked_class(error),
            None if text is None else checked_text("text", text, TEXT_BYTES_MAX),
        )

    def matches(self, failure: Failure | None) -> bool:
        """True if the text is in the error, the message or the detail. The class is not looked at."""
        if self.text is None:
            return True
        told = () if failure is None else (failure.error, failure.message, failure.detail)
        return any(self.text in part for part in told)


def _checked_class(error: Any) -> str:
    """A class of failure; the empty one is that of tasks without a failure. Raises: InvalidArgument."""
    if isinstance(error, str) and not error:
        return ""
    return class_of(checked_text("error", error, limits.FAILURE_MESSAGE_BYTES_MAX))
