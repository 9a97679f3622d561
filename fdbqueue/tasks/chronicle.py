"""Chronicle: a queue with the option `chronicle` keeps its figures (points.py), and times (times.py).

Another queue has none of these keys, and pays nothing. Whoever sweeps the queue stores a point in each
minute. The transaction reads the point of the hour serialisably, and stores nothing if that is of this
minute, or a later one. So two processes store one point, by whatever clocks, and no rate is counted twice.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core.partitions import POINT, TIMES, prefix_of
from fdbqueue.core.rows import Check, Flaw, OfColumn, Row, readable
from fdbqueue.tasks.feature import Feature, Site
from fdbqueue.tasks.points import HOUR_US, Point, due_us, hour_slot, minute_slot, point_of, point_to_bytes
from fdbqueue.tasks.rows import FeatureRows
from fdbqueue.tasks.stored.records import COUNTERS, LIVE_NAMES, statistics_of, summed
from fdbqueue.tasks.times import COUNTS_BYTES


class ChronicleRows(FeatureRows):
    """An export leaves them out: they tell of the queue from which it comes."""

    def shared(self) -> dict[int, OfColumn]:
        return {POINT: self._point, TIMES: self._times}

    def _point(self, row: Row, _: bytes) -> Check:
        if readable(point_of, row.value) is None:
            yield self.found(Flaw.VALUE, row, "A point of the chronicle cannot be read.")

    def _times(self, row: Row, _: bytes) -> Check:
        if len(row.value) != COUNTS_BYTES:
            yield self.found(Flaw.VALUE, row, "Times of the chronicle cannot be read.")


class Chronicle(Feature):
    rows = ChronicleRows

    def __init__(self, settings: Any, *_: Any) -> None:
        self._is_kept = bool(settings.chronicle)

    def ask_due(self, site: Site) -> Callable[[], int | None]:
        """Reads: the point of this hour."""
        stored = site.tr.snapshot.get(site.shared.point(hour_slot(site.now_us)))
        return lambda: due_us(readable(point_of, stored.value), site.now_us)

    def sweep(self, site: Site) -> bool:
        """Store the point of this minute, unless one is there. Without the option, remove all keys.

        Reads: the points of this hour and of the next one; the counters of each partition, by snapshot.
        Conflicts: another point.
        """
        if not self._is_kept:
            return _clear(site)
        tr, now_us, keys = site.tr, site.now_us, site.shared
        asked, ahead = (tr.get(keys.point(hour_slot(at_us))) for at_us in (now_us, now_us + HOUR_US))
        prefixes = [prefix_of(Subspace((), site.keys.prefix), number) for number in range(site.parts)]
        counters = [tr.snapshot.get(COUNTERS.start(prefix)) for prefix in prefixes]
        if due_us(readable(point_of, asked.value), now_us) > now_us or _is_ahead(ahead.value, now_us):
            return False
        found = summed([statistics_of(one.value) for one in counters])
        point = point_to_bytes(_point(found["tasks"], found["calls"], now_us))
        tr.set(keys.point(minute_slot(now_us)), point)
        tr.set(keys.point(hour_slot(now_us)), point)
        return True


def _clear(site: Site) -> bool:
    unders = (site.shared.points, site.shared.times)
    asked = [site.tr.snapshot.get_range(under.start, under.stop, limit=1) for under in unders]
    there = [under for under, rows in zip(unders, asked, strict=True) if rows.to_list()]
    for under in there:
        site.tr.clear_range(under.start, under.stop)
    return bool(there)


def _is_ahead(value: bytes | None, now_us: int) -> bool:
    """True if another process has stored a point of the next hour, as its clock is fast."""
    point = readable(point_of, value)
    return point is not None and point.at_us > now_us


def _point(tasks: Mapping[str, int], calls: Mapping[str, int], now_us: int) -> Point:
    states = {state: tasks[state] for state in LIVE_NAMES}
    failed = calls["release"] + calls["bury"]
    return Point(at_us=now_us, **states, put=calls["put"], done=tasks["done"], failed=failed)
