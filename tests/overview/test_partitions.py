"""The figures of a queue with partitions are those of all of them, in one snapshot."""

from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue import Database, Overview, Queue, TaskFigures, TaskQueue
from tests.overview.test_figures import Trips, trips_of
from tests.partitions.support import PARTITIONS, key_in, moving_key
from tests.tasks.support import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def db(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def figures_of(db: Database, name: str = "q") -> TaskFigures:
    tasks = Overview(name).figures(db).by_name[name].tasks
    assert tasks is not None
    return tasks


def test_counts_are_sums_and_ages_the_largest(db: Database, clock: StillClock) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", partitions=PARTITIONS)
    for partition in (3, 1, 1, 0):
        queue.put(db, partition, key=key_in(partition))
        clock.advance(10)
    queue.bury(db, queue.put(db, "buried", key=key_in(2)).id)
    queue.put(db, "later", key=key_in(2), delay=5)
    clock.advance(8)
    found = figures_of(db)
    assert (found.ready, found.buried, found.delayed, found.calls["put"]) == (4, 1, 1, 6)
    assert (found.next_age_s, found.oldest_age_s, found.oldest_is_exact) == (48, 48, True)
    assert (found.sweep_lag_s, found.fullest_ready) == (3, 2)
    assert (found.busiest[0].key, found.busiest[0].ready) == (key_in(1), 2)
    assert {key.key for key in found.busiest} == {key_in(0), key_in(1), key_in(3)}
    assert Overview().figures(db).by_name["q"].items == 6


def test_partitions_and_an_open_repartition_are_told(db: Database) -> None:
    queue = TaskQueue.create(db, "q", "fifo", partitions=PARTITIONS)
    overview = Overview("q")
    first = overview.figures(db).by_name["q"].tasks
    assert (first.partitions, first.partitions_before) == (PARTITIONS, 0)
    for n in range(2 * PARTITIONS):
        queue.put(db, n)
    assert not queue.repartition(db, 2).is_finished
    second = overview.figures(db).by_name["q"].tasks
    assert (second.partitions, second.partitions_before, second.ready) == (2, PARTITIONS, 2 * PARTITIONS)


def test_items_of_all_partitions_are_counted(db: Database) -> None:
    queue, overview = Queue.named(db, "q", partitions=PARTITIONS), Overview("q")
    for n in range(2 * PARTITIONS):
        queue.enqueue(db, n)
    for count in (PARTITIONS, 1):
        queue.repartition(db, count)
        found = overview.figures(db).by_name["q"]
        assert (found.items, found.partitions, found.tasks) == (2 * PARTITIONS, count, None)
        assert found.fullest_items == 2


def test_a_queue_without_partitions_has_one(db: Database) -> None:
    TaskQueue.create(db, "q", "fifo")
    found = figures_of(db)
    assert (found.partitions, found.partitions_before, found.fullest_ready) == (1, 0, None)


def test_a_task_key_that_moves_is_told_once(db: Database) -> None:
    queue = TaskQueue.create(db, "q", "utube", partitions=2)
    moving = moving_key(0, 2, 4)
    queue.put(db, "old", key=moving)
    queue.repartition(db, 4)
    queue.put(db, "new", key=moving)
    [found] = figures_of(db).busiest
    assert (found.key, found.ready) == (moving, 2)


def test_a_look_at_partitions_is_one_round_trip(clock: StillClock) -> None:
    with fdbqueue.open("memory:", runtime=clock) as opened:
        engine = Trips(opened.engine)
        db = Database(engine, clock)  # type: ignore[arg-type]  # options are never asked for
        TaskQueue.create(db, "q", "utubettl", partitions=PARTITIONS).put(db, 1, key="a")
        overview = Overview("q")
        assert [trips_of(engine, db, overview.figures)[0] for _ in range(2)] == [2, 1]


def test_the_busiest_keys_of_all_partitions_have_a_bound(db: Database) -> None:
    queue = TaskQueue.create(db, "q", "utube", partitions=PARTITIONS)
    for partition, number in ((0, 1), (1, 3), (2, 2)):
        for n in range(number):
            queue.put(db, n, key=key_in(partition))
    found = Overview("q", keys=2).figures(db).by_name["q"].tasks
    assert found is not None
    assert [(one.key, one.ready) for one in found.busiest] == [(key_in(1), 3), (key_in(2), 2)]
