"""Stored values of a schedule: its record, which its verbs write, and its state, which each firing writes.

Both are msgpack arrays that grow at their end only. A record with a larger version than this release knows is
left to newer processes. The state of a schedule that waits has `at_us`, the time of its key in R[13].
"""

from typing import Annotated, Any

import msgspec

from fdbqueue.core.errors import ScheduleUnreadable
from fdbqueue.tasks.options import PutOptions
from fdbqueue.tasks.schedules.times import CronTimes, EveryTimes, Times, zone_named

VERSION = 1
ONCE, ALL, SKIP = "once", "all", "skip"
MISSED = (ONCE, ALL, SKIP)

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
