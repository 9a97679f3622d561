"""Task, TaskState and Failure: what users of a task queue see, frozen values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class TaskState(StrEnum):
    READY = "r"
    TAKEN = "t"
    BURIED = "!"
    DELAYED = "~"
    DONE = "-"  # only ever in what a verb returns and in what a callback is told


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was when the call that returned it committed.

    Times are seconds since the epoch, None for never. `token` is the lease that a take gave: verbs that are
    handed this value act under that lease and no other.
    """

    id: str
    state: TaskState
    data: Any
    pri: int = 0
    key: Any = None
    attempts: int = 0
    """How often it has been taken."""
    failures: int = 0
    """How many of its attempts have failed since it was put, or kicked, by no fault of the database."""
    orphaned: int = 0
    """How many of the last of them ended without a word: the lease was over, or its holder dead."""
    created: float = 0.0
    expires: float | None = None
    """When its ttl ends."""
    until: float | None = None
    """When its lease ends (taken), or its delay (delayed)."""
    token: bytes | None = None

    def _note_end(self, verb: str | None) -> None:
        """A verb that ends the lease begins (None), or has succeeded. A worker's task remembers it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt at a task that failed. Whoever reports one says what went wrong; the queue adds the rest.

    Texts longer than limits.FAILURE_MESSAGE_BYTES_MAX and limits.FAILURE_DETAIL_BYTES_MAX are cut: a
    message keeps its beginning, a detail its end, where a traceback says what happened.
    """

    error: str
    """The class of the error, or another short name of what went wrong."""
    message: str = ""
    detail: str = ""
    """A traceback, or what the program printed."""
    worker: str = ""
    """Who worked on it."""
    outcome: str = ""
    """"retried", "buried", or "lease_lost"; "exhausted" if that buried it, "excused" if it does not count, as
    the database was away.
    """
    attempt: int = 0
    """Which time it had been taken."""
    when: float = 0.0
    """Seconds since the epoch."""
