"""Task and TaskState: what users of a task queue see, frozen values."""

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
    created: float = 0.0
    expires: float | None = None
    """When its ttl ends."""
    until: float | None = None
    """When its lease ends (taken), or its delay (delayed)."""
    token: bytes | None = None
