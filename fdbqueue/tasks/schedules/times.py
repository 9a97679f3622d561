"""Times: the due times of a schedule, as functions of a time and of nothing else; and turns.

All times are whole microseconds since the epoch. The due times of one rule are one set, so each function
gives the same answer in every process, wherever it begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.lazy import needs


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


ONCE, ALL, SKIP = "once", "all", "skip"
MISSED = (ONCE, ALL, SKIP)
SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_ZONE = (LookupError, ValueError, OSError)
"""Errors of `zoneinfo` for a name that it does not find, or that is a path or a directory."""


class Times(Protocol):
    def after(self, time_us: int) -> int | None:
        """The first one behind this time; None if there is none."""

    def last_until(self, time_us: int, due_us: int) -> int:
        """The last one up to this time, and not before `due_us`, which is one of them."""


class EveryTimes:
    def __init__(self, every_us: int, anchor_us: int) -> None:
        self._every_us = every_us
        self._anchor_us = anchor_us

    def after(self, time_us: int) -> int | None:
        return time_us + self._every_us - (time_us - self._anchor_us) % self._every_us

    def last_until(self, time_us: int, due_us: int) -> int:
        return max(due_us, time_us - (time_us - self._anchor_us) % self._every_us)


class CronTimes:
    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone

    def after(self, time_us: int) -> int | None:
        try:
            found = times_from(self._expression, _datetime(time_us // SECOND_US * SECOND_US, self._zone))
            return next(
                (us for at in found if (us := (at - _EPOCH) // timedelta(microseconds=1)) > time_us), None
            )
        except OverflowError:  # beyond the last year of a datetime
            return None

    def last_until(self, time_us: int, due_us: int) -> int:
        """By halves, as an expression with seconds may have millions of times in an outage."""
        last_us, low_s, high_s = due_us, due_us // SECOND_US, time_us // SECOND_US
        while low_s <= high_s:
            middle_s = (low_s + high_s) // 2
            found = self.after(middle_s * SECOND_US)
            if found is not None and found <= time_us:
                last_us, low_s = found, found // SECOND_US
                continue
            high_s = middle_s - 1
        return last_us


def times_from(expression: str, start: datetime) -> Iterator[datetime]:
    """The times of a cron expression behind `start`, in order, in its time zone.

    In the second pass through an hour that exists twice, the library may begin with a time of the first pass.
    """
    with needs("schedules", "cronsim"):
        from cronsim import CronSim, CronSimError
    try:
        return CronSim(expression, start)
    except (CronSimError, ValueError) as reason:
        wanted = f"a cron expression of five fields, or of six with the seconds first ({reason})"
        raise InvalidArgument(name="expression", wanted=wanted, got=expression) from reason


def zone_named(name: str) -> tzinfo:
    """Raises: InvalidArgument for a name that this machine does not know."""
    if name == "UTC":  # which needs no files
        return UTC
    try:
        return ZoneInfo(name)
    except _NO_ZONE as reason:
        wanted = f"a time zone that this machine knows, such as Europe/Rome ({reason})"
        raise InvalidArgument(name="timezone", wanted=wanted, got=name) from reason


def shown(time_us: int, zone: tzinfo) -> datetime:
    return _datetime(time_us, zone)


def next_times(times: Times, time_us: int, count: int) -> list[int]:
    """The first `count` due times behind a time; fewer if there are no more."""
    found: list[int] = []
    due_us = times.after(time_us)
    while due_us is not None and len(found) < min(count, limits.SCHEDULE_TIMES_MAX):
        found.append(due_us)
        due_us = times.after(due_us)
    return found


def _datetime(time_us: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=time_us)).astimezone(zone)


@dataclass(frozen=True)
class Turn:
    """The due times that get a task each, and the next due time; None if there is no other."""

    times_us: Sequence[int]
    next_us: int | None


def turn_of(times: Times, missed: str, due_us: int, now_us: int, most: int | None = None) -> Turn:
    """The turn of a schedule that is due.

    At most `most` due times get a task, by default limits.SCHEDULE_FIRED_MAX; the next turn goes on behind
    them. A due time is missed if it is over for more than limits.SCHEDULE_MISSED_AFTER_S.

    The next due time follows from the due times, never from the clock of the process that passes: clocks that
    differ by less than limits.CLOCK_SKEW_S leave out no due time, and give none twice.
    """
    late_us = now_us - round(limits.SCHEDULE_MISSED_AFTER_S * SECOND_US)
    first_us: int | None = due_us
    if due_us < late_us and missed == ONCE:
        last_us = times.last_until(now_us, due_us)
        return Turn((last_us,), times.after(last_us))
    if due_us < late_us and missed == SKIP:
        first_us = times.after(late_us - 1)
    chosen: list[int] = []
    most = limits.SCHEDULE_FIRED_MAX if most is None else most
    while first_us is not None and first_us <= now_us and len(chosen) < most:
        chosen.append(first_us)
        first_us = times.after(first_us)
    return Turn(chosen, first_us)


def retry_us(now_us: int, tries: int) -> int:
    waits = limits.SCHEDULE_RETRY_FIRST_S * 2.0 ** min(tries - 1, 30)
    return now_us + round(min(waits, limits.SCHEDULE_RETRY_MAX_S) * SECOND_US)
