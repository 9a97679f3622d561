"""ScheduleStatus: the public frozen value that tells of a schedule."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule as it is stored. Times are seconds since the epoch."""

    name: str
    queue: str = ""
    expression: str | None = None
    every: float | None = None
    """The distance of two due times in seconds; None with an expression."""
    timezone: str = "UTC"
    missed: str = "once"
    data: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of its puts that differ from their default."""
    paused: bool = False
    created: float = 0.0
    due: float | None = None
    """The next due time; None while it is paused, and if there is no other."""
    fired: int = 0
    """Number of due times for which a task was put."""
    last_due: float | None = None
    """The last due time for which a task was put."""
    last_fired: float | None = None
    """The time of that put."""
    last_task: str | None = None
    error: str | None = None
    """The reason why the last try has failed, or why it cannot be read; None if all is well."""
    tries: int = 0
    """Number of tries that have failed since the last success."""
    next_try: float | None = None
    """The time of the next try: `due`, or later after a failure."""
