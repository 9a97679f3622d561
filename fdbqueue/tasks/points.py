"""Points: the figures of a queue with a chronicle at the end of each minute and hour (chronicle.py).

A point has counts of states, and counters since the queue was created: a rate is the difference of two
points. They lie in two rings: that of the minutes of a day, and that of the hours of a month. The point of an
hour is the last one in it. A minute without a point is a gap.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.rows import readable
from fdbqueue.core.seam import Transaction

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000


class Point(msgspec.Struct, frozen=True, array_like=True):
    """The figures at one time. Append fields with a default; never reorder them."""

    at_us: int
    ready: int
    taken: int
    delayed: int
    buried: int
    put: int
    """Since the queue was created; `done` and `failed`, which counts releases and burials, likewise."""
    done: int
    failed: int


point_to_bytes = msgspec.msgpack.Encoder().encode
point_of = msgspec.msgpack.Decoder(Point).decode
"""Decode a point. Raises one of aside.DAMAGED for damaged bytes."""


def minute_slot(at_us: int) -> int:
    return at_us // MINUTE_US % limits.MINUTES_KEPT


def hour_slot(at_us: int) -> int:
    return limits.MINUTES_KEPT + at_us // HOUR_US % limits.HOURS_KEPT


def due_us(last: Point | None, now_us: int) -> int:
    """The time of the next point, given the one that is stored for this hour."""
    if last is None or last.at_us // HOUR_US != now_us // HOUR_US:
        return 0
    return (last.at_us // MINUTE_US + 1) * MINUTE_US


Places = Sequence[Point | None]
"""The oldest first; None for a gap."""


def ask_points(tr: Transaction, keys: SharedKeys, now_us: int) -> Callable[[], tuple[Places, Places]]:
    """Ask for the points of the minutes and the hours until now. Reads: limits.MINUTES_KEPT and HOURS_KEPT
    keys, by snapshot.
    """
    asked = tr.snapshot.get_range(keys.points.start, keys.points.stop)

    def reply() -> tuple[Places, Places]:
        found = {keys.slot_of(row.key): readable(point_of, row.value) for row in asked}
        minutes = _ring(found, minute_slot, MINUTE_US, limits.MINUTES_KEPT, now_us)
        return minutes, _ring(found, hour_slot, HOUR_US, limits.HOURS_KEPT, now_us)

    return reply


def _ring(
    found: Mapping[int, Point | None], slot: Callable[[int], int], step_us: int, kept: int, now_us: int
) -> Places:
    last = now_us // step_us
    points = [(number, found.get(slot(number * step_us))) for number in range(last - kept + 1, last + 1)]
    return [None if one is None or one.at_us // step_us != number else one for number, one in points]
