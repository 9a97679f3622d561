"""Stored values of a schedule: its record, which its verbs write, and its state, which each firing writes.

Both are msgpack arrays that grow at their end only. A record with a larger version than this release knows is
left to newer processes. The state of a schedule that waits has `at_us`, the time of its key in R[13].
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text, is_number
from fdbqueue.core.errors import InvalidArgument, ScheduleUnreadable
from fdbqueue.tasks.options import PutOptions
from fdbqueue.tasks.schedules.times import MISSED, SECOND_US, CronTimes, EveryTimes, Times, zone_named

VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """The due times of a schedule. Append fields with a default; never reorder."""

    expression: str | None
    """None with `every_us`."""
    every_us: Count
    anchor_us: Count
    """The time that `every_us` counts from."""
    timezone: str
    missed: str

    def times(self) -> Times:
        """Raises: InvalidArgument for a time zone or an expression that this process does not know."""
        if self.expression is None:
            return EveryTimes(self.every_us, self.anchor_us)
        return CronTimes(self.expression, zone_named(self.timezone))

    def is_at_the_times_of(self, other: "Rule") -> bool:
        """True if both have the same due times, wherever these are counted from."""
        ours = (self.expression, self.every_us, self.timezone)
        return ours == (other.expression, other.every_us, other.timezone)


NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Those of crontab(5), which the library does not know. A schedule stores the fields."""


def rule_for(expression: Any, every: Any, timezone: Any, missed: Any, now_us: int) -> Rule:
    """Raises: InvalidArgument; ModuleNotFoundError for an expression, without the extra."""
    if (expression is None) == (every is None):
        between = "the seconds between two due times, without an `expression`"
        wanted = between if every is None else "None beside an `expression`"
        raise InvalidArgument(name="every", wanted=wanted, got=every)
    checked_missed(missed)
    zone = checked_text("timezone", timezone, limits.SCHEDULE_TIMEZONE_BYTES_MAX)
    if expression is None:
        if zone != "UTC":
            raise InvalidArgument(name="timezone", wanted="UTC with `every`", got=timezone)
        anchor_us = now_us // SECOND_US * SECOND_US
        return Rule(None, _checked_every_us(every), anchor_us, zone, missed)
    text = checked_text("expression", expression, limits.SCHEDULE_EXPRESSION_BYTES_MAX)
    rule = Rule(NICKNAMES.get(text, text), 0, 0, zone, missed)
    if rule.times().after(now_us) is None:
        wanted = "an expression with a time within the next fifty years"
        raise InvalidArgument(name="expression", wanted=wanted, got=expression)
    return rule


def checked_missed(missed: Any) -> str:
    if missed not in MISSED:
        raise InvalidArgument(name="missed", wanted='"once", "all" or "skip"', got=missed)
    return str(missed)


def _checked_every_us(every: Any) -> int:
    if not is_number(every) or not limits.SCHEDULE_EVERY_MIN_S <= every < limits.SPAN_MAX_S:
        wanted = f"{limits.SCHEDULE_EVERY_MIN_S:g} or more seconds, less than a hundred years"
        raise InvalidArgument(name="every", wanted=wanted, got=every)
    return round(float(every) * SECOND_US)


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A schedule. Append values to `more` (records/extra.py)."""

    version: Count
    rule: Rule
    queue: str
    codec: str
    """The codec of `payload`."""
    payload: bytes
    options: PutOptions
    paused: bool
    created_us: Count
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """The results of the firings of a schedule. Append values to `more` (records/extra.py)."""

    due_us: Count | None = None
    """The next due time; None while it is paused, and if there is no other."""
    at_us: Count | None = None
    """The time of the next try: that of its key in R[13]."""
    fired: Count = 0
    """Number of due times for which a task was put."""
    last_due_us: Count | None = None
    last_fired_us: Count | None = None
    last_task: str | None = None
    error: str | None = None
    """The reason why the last try has failed; None after a success."""
    tries: Count = 0
    """Number of tries that have failed since."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""


_to_bytes = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_state = msgspec.msgpack.Decoder(State).decode


class _Versioned(msgspec.Struct, array_like=True):
    version: int


_decode_version = msgspec.msgpack.Decoder(_Versioned).decode


def to_bytes(value: Record | State) -> bytes:
    return _to_bytes(value)


def record_of(name: str, value: bytes) -> Record:
    """Raises: ScheduleUnreadable for a damaged value, and for that of a newer release."""
    try:
        if _decode_version(value).version > VERSION:
            raise ScheduleUnreadable(name=name, reason="a newer release wrote it")
        return _decode_record(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as reason:
        raise ScheduleUnreadable(name=name, reason=f"it is damaged: {reason}") from reason


def state_of(value: bytes | None) -> State | None:
    """None for a missing or damaged state: the next firing writes it anew."""
    try:
        return None if value is None else _decode_state(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
