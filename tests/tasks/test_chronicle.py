"""A chronicle has a point for each minute and hour, whoever sweeps; and times of the last hour."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, InvalidArgument, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.seam import engine_errors
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks import points, times
from fdbqueue.tasks.chronicle import Chronicle
from fdbqueue.tasks.points import HOUR_US, MINUTE_US, Places, Point
from fdbqueue.tasks.times import BUCKETS
from tests.tasks.support import StillClock

START_US = 1_700_000_000_000_000


@pytest.fixture
def still() -> Iterator[tuple[Database, StillClock]]:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database, clock


def sweep(queue: TaskQueue, tr: Any, now_us: int) -> bool:
    """The sweep of a process with this time."""
    swept = queue._calls(queue._database).parts.zero.change(tr)
    [feature] = queue._shape.sweeping
    return feature.sweep(swept.site._replace(now_us=now_us))


def places(db: Database, queue: TaskQueue, now_us: int) -> tuple[Places, Places]:
    @fdbqueue.transactional
    def look(tr: Any) -> tuple[Places, Places]:
        return points.ask_points(tr, queue._shape.shared, now_us)()

    return look(db)


def known(points: Places) -> list[Point]:
    return [point for point in points if point is not None]


def test_two_keepers_store_one_point_a_minute(still: tuple[Database, StillClock]) -> None:
    """Whatever their clocks are: the rates between points add up to the counters, and none goes back."""
    db, _ = still
    for seed in range(20):
        random = Random(seed)
        queue, now_us = TaskQueue.create(db, f"q{seed}", chronicle=True), START_US
        skews_us = [0, random.choice((1, 20, 90)) * 1_000_000, -30_000_000]
        stored = 0
        for _ in range(60):
            now_us += random.choice((1, 20, 61, 200)) * 1_000_000
            for _ in range(random.randrange(3)):
                queue.put(db, 1)
            stored += swept_at_once(db, queue, [now_us + random.choice(skews_us) for _ in range(2)])
        minutes = known(places(db, queue, now_us + 90_000_000)[0])
        assert len(minutes) == stored
        assert sorted(minutes, key=lambda one: (one.at_us, one.put)) == minutes
        changes = [after.put - before.put for before, after in pairwise(minutes)]
        assert all(change >= 0 for change in changes)
        assert sum(changes) == minutes[-1].put - minutes[0].put


def swept_at_once(db: Database, queue: TaskQueue, times_us: Sequence[int]) -> int:
    """Two processes sweep in overlapping transactions. Return the number of points that were stored."""
    trs = [db.create_transaction() for _ in times_us]
    stored = [sweep(queue, tr, at_us) for tr, at_us in zip(trs, times_us, strict=True)]
    for number, tr in enumerate(trs):
        try:
            tr.commit().wait()
        except engine_errors():
            stored[number] = False
    return sum(stored)


def test_a_gap_is_no_point(still: tuple[Database, StillClock]) -> None:
    """Neither a minute without a sweep, nor one that the ring has left from the day before."""
    db, _ = still
    queue = TaskQueue.create(db, "q", chronicle=True, partitions=3)
    for minute in (0, 1, 4, limits.MINUTES_KEPT + 1):
        queue.put_many(db, range(3))
        swept_at_once(db, queue, [START_US + minute * MINUTE_US])
    now_us = START_US + (limits.MINUTES_KEPT + 1) * MINUTE_US
    minutes, hours = places(db, queue, now_us)
    assert (len(minutes), len(hours)) == (limits.MINUTES_KEPT, limits.HOURS_KEPT)
    assert [(place, one.put) for place, one in enumerate(minutes) if one] == [(2, 9), (1439, 12)]
    assert [one.put for one in known(hours)] == [9, 12]
    month_us = now_us + limits.HOURS_KEPT * HOUR_US
    assert known(places(db, queue, month_us)[1]) == []


def test_the_keeper_stores_points(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    queue = TaskQueue.create(db, "q", chronicle=True)
    queue.put(db, 1)
    for _ in range(3):
        queue.statistics(db)
        queue._calls(db)._keeper.tick()
        clock.advance(60)
    assert [one.ready for one in known(places(db, queue, clock.now_us())[0])] == [1, 1, 1]
    assert verify(db).findings == ()


def test_a_point_counts_all_ends_and_all_failures(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    queue = TaskQueue.create(db, "q", chronicle=True)
    ids = queue.put_many(db, range(9))
    for end in (queue.ack, queue.delete, queue.release, queue.bury, queue.bury):
        end(db, queue.take(db, 0))
    queue.cancel(db, ids[-1])
    swept_at_once(db, queue, [clock.now_us()])
    [point] = known(places(db, queue, clock.now_us())[0])
    assert (point.put, point.done, point.failed) == (9, 3, 3)
    assert (point.ready, point.taken, point.delayed, point.buried) == (4, 0, 0, 2)


def test_points_go_with_the_option(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    queue = TaskQueue.create(db, "q")
    assert queue._shape.sweeping == ()
    queue.alter(db, chronicle=True)
    queue = TaskQueue.open(db, "q")
    swept_at_once(db, queue, [clock.now_us()])
    assert known(places(db, queue, clock.now_us())[0])
    keys = queue._shape.shared
    db[keys.times_at(times.span_of(clock.now_us()), b"")] = bytes(times.COUNTS_BYTES)
    queue.alter(db, chronicle=None)
    assert not list(db.get_range(keys.times.start, keys.times.stop))
    assert TaskQueue.open(db, "q")._shape.sweeping == ()
    assert not known(places(db, queue, clock.now_us())[0])
    with pytest.raises(InvalidArgument, match="chronicle"):
        queue.alter(db, chronicle=2)


def test_damaged_rows_are_findings_and_gaps(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    queue, now_us = TaskQueue.create(db, "q", chronicle=True), clock.now_us()
    keys = queue._shape.shared
    db[keys.point(points.minute_slot(now_us))] = b"\xc1"
    db[keys.times_at(times.span_of(now_us), b"")] = b"short"
    assert known(places(db, queue, now_us)[0]) == []
    assert durations(db, queue, now_us) == times.Times(None, None)
    assert [one.text.split(" of ")[0] for one in verify(db).findings] == ["A point", "Times"]
    assert swept_at_once(db, queue, [now_us]) == 1


def durations(db: Database, queue: TaskQueue, now_us: int, key: bytes = b"") -> times.Times:
    @fdbqueue.transactional
    def look(tr: Any) -> times.Times:
        return times.ask_times(tr, queue._shape.shared, [key], now_us)()[key]

    return look(db)


def test_a_quantile_is_wrong_by_a_tenth_at_most() -> None:
    random = Random(1)
    for _ in range(50):
        values = [0.001 * 10 ** random.uniform(0.1, 8.5) for _ in range(random.choice((1, 7, 400)))]
        counts = [0] * BUCKETS
        for value in values:
            counts[times.bucket_of(value)] += 1
        found, ordered = times.durations_of(counts), sorted(values)
        assert found is not None
        for quantile_s, part in ((found.p50_s, 0.5), (found.p99_s, 0.99)):
            rank = max(0, -int(-len(ordered) * part // 1) - 1)
            assert quantile_s == pytest.approx(ordered[rank], rel=0.1)


def test_times_of_more_than_an_hour_ago_go(still: tuple[Database, StillClock]) -> None:
    """Adding blindly clears the spans that are over; so there are few, however long a worker lives."""
    db, _ = still
    queue = TaskQueue.create(db, "q", chronicle=True)
    keys = queue._shape.shared
    counts = [0] * 2 * BUCKETS
    counts[times.bucket_of(2.0)], counts[BUCKETS + times.bucket_of(8.0)] = 3, 1

    @fdbqueue.transactional
    def add(tr: Any, now_us: int) -> int:
        times.add_times(tr, keys, {b"": counts, b"key": counts}, now_us)
        return len(list(tr.get_range(keys.times.start, keys.times.stop)))

    rows = [add(db, START_US + minute * MINUTE_US) for minute in range(200)]
    assert max(rows) == 2 * (limits.TIMES_SPANS + 1)
    found = durations(db, queue, START_US + 199 * MINUTE_US, b"key")
    assert found.waiting is not None
    assert found.running is not None
    assert 60 <= found.running.count <= 80
    assert found.waiting.p50_s == pytest.approx(2, rel=0.1)
    assert found.running.p99_s == pytest.approx(8, rel=0.1)
    assert durations(db, queue, START_US + 300 * MINUTE_US) == times.Times(None, None)


def test_a_queue_without_it_has_no_such_feature(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    assert not any(isinstance(one, Chronicle) for one in TaskQueue.create(db, "q")._shape.features)
