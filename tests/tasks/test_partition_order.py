"""The order of tasks in a queue with partitions, as docs/partitions.md states it, and its round trips."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Session, Task, TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.partitions import home_of
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.repartition import Settling
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import id_bytes, partition_of
from tests.support import wait_until
from tests.tasks.partitions import MakeParted, PartitionsBench, moving_key
from tests.tasks.support import SetLimits
from tests.tasks.trips import Trips, trips_of

COUNT = 4
KEY = moving_key(1, 4)


def taken(b: PartitionsBench) -> Iterator[Task]:
    return iter(b.take, None)


def by_partition(tasks: Iterator[Task]) -> list[list[object]]:
    return [[task.data for task in few] for _, few in groupby(sorted(tasks, key=put_into), put_into)]


def put_into(task: Task) -> int:
    return partition_of(id_bytes(task.id))


@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_tasks_without_a_key_are_in_order_in_a_partition(parted: MakeParted, kind: str) -> None:
    b = parted(kind, partitions=COUNT)
    b.put_each(range(40))
    found = by_partition(taken(b))
    assert found == [sorted(few) for few in found]
    assert [len(few) for few in found] == [10] * COUNT


@pytest.mark.parametrize("kind", ["fifottl", "utubettl", "fair"])
def test_tasks_from_other_partitions_come_first_in_turn(parted: MakeParted, kind: str) -> None:
    """A key in partition 3, then in 1, and at the end in 0, has delayed tasks of each."""
    b, key = parted(kind, partitions=1), key_through(4, 2, 1)
    of_key = {"key": key} if b.keyed else {}
    for count in (4, 2, 1):
        b.repartition(count)
        for _ in range(1 if b.keyed else count):
            b.put(count, delay=9, **of_key)
    b.put("later", **of_key)
    b.clock.advance(10)
    b.settle()
    found = [(put_into(task), task.data) for task in taken_and_acked(b)]
    if b.keyed:
        assert found == [(1, 2), (3, 4), (0, 1), (0, "later")]
        return
    put_here = [(0, 4), (0, 2), (0, 1), (0, "later")]
    assert found == [(1, 4), (1, 2), (2, 4), (3, 4), *put_here]


def taken_and_acked(b: PartitionsBench) -> Iterator[Task]:
    while (task := b.take()) is not None:
        yield b.queue.ack(b.db, task)


def key_through(*counts: int) -> int:
    """A task key that lies in the last partition of each number."""
    return next(
        key for key in range(999) if all(home_of(key_bytes(key), count) == count - 1 for count in counts)
    )


def test_a_key_that_is_let_go_begins_in_the_next_round(parted: MakeParted) -> None:
    b = parted("fair")
    other = next(n for n in range(99) if n != KEY and home_of(key_bytes(n), 4) == home_of(key_bytes(KEY), 4))
    b.put("old", key=KEY)
    old = b.take()
    b.repartition(4)
    for number in range(3):
        b.put(number, key=other)
    assert b.take().data == 0
    b.put("new", key=KEY)
    b.queue.ack(b.db, old)
    assert b.taken_data() == [1, "new", 2]


def test_the_passes_of_the_next_plan_see_all_keys(parted: MakeParted, set_limits: SetLimits) -> None:
    """Another process has finished the plan before, in the middle of a pass of this one."""
    set_limits(KEYS_LOOKED_AT_MAX=1)
    b, (early, late) = parted("utube"), keys_of_a_pass()
    settling = Settling(calls_of(b.db, b.queue._shape).parts, b.clock.monotonic)
    b.put("late", key=late)
    b.put("early", key=early)
    run(b.db, lambda tr: b.queue.repartition(tr, 2))
    for _ in range(2):
        run(b.db, settling.step)
    assert b.other_process().repartition(b.db, 2).is_finished
    old = [b.take(), b.take()]
    run(b.db, lambda tr: b.queue.repartition(tr, 4))
    b.put("new", key=early)
    while run(b.db, settling.step):
        pass
    assert b.take() is None
    for task in old:
        b.queue.ack(b.db, task)
    assert b.take().data == "new"


def keys_of_a_pass() -> tuple[int, int]:
    """Two task keys, in their order: only the first one leaves partition 0 from the second step on."""
    homes = [tuple(home_of(key_bytes(key), count) for count in (2, 4)) for key in range(99)]
    early = next(key for key in range(1, 99) if homes[key][0] == 0 and homes[key][1])
    return early, next(key for key in range(early + 1, 99) if homes[key] == (0, 0))


def test_a_held_key_with_a_damaged_state_is_let_go(parted: MakeParted) -> None:
    """Its last task in the old partition is set aside, and lets go of none."""
    b = parted("utube")
    old = b.put("old", key=KEY)
    b.take()
    b.repartition(4)
    b.put("new", key=KEY)
    discipline = b.queue._shape.partition(home_of(key_bytes(KEY), 4)).discipline
    assert isinstance(discipline, Keyed)
    b.db[discipline.state_key(key_bytes(KEY))] = b"\xff damaged"
    b.db[b.queue._shape.keys.task(id_bytes(old))] = b"\xff damaged"
    b.queue.delete(b.db, old)
    b.settle()
    assert b.take().data == "new"


def test_a_task_with_an_excused_burial_joins_its_new_partition(parted: MakeParted) -> None:
    """Ready in its old one, it would be taken beside another task of its key."""
    b = parted("utubettl", ttr=5)
    old = b.put("old", key=KEY)
    lost = b.take()
    b.clock.advance(6)
    assert b.queue.exhaust(b.db, b.take(), 1)
    b.repartition(COUNT)
    b.settle()
    assert b.queue.excuse(b.db, lost)
    assert b.places() == {old: home_of(key_bytes(KEY), COUNT)}
    b.put("new", key=KEY)
    assert b.taken_data() == ["old"]


KINDS = [("fifottl", 1, 1, 1), ("bag", 1, 1, 1), ("utube", 1, 2, 2), ("fair", 1, 2, 1)]
"""A kind, and the round trips of a put, a take and an ack without partitions."""


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("kind", "put", "take", "ack"), KINDS)
def test_the_round_trips_of_partitions(
    trips: tuple[Database, Trips], kind: str, put: int, take: int, ack: int, moved: bool
) -> None:
    """A put and an ack cost as much as without; so does a take at home, and elsewhere two more."""
    db, engine = trips
    queue, session = TaskQueue.create(db, "trips", kind, partitions=4), Session(db, ttr=1e9)
    if moved:
        queue.repartition(db, 8)
    assert queue.take(db, 0, session=session) is None  # it has chosen its homes
    waits = []
    for number in range(40):
        key = number if kind in ("utube", "fair") else None
        assert trips_of(engine, db, lambda tr, key=key: queue.put(tr, "x", key=key))[0] == put
    for _ in range(40):
        waited, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
        waits.append(waited)
        assert trips_of(engine, db, lambda tr, task=task: queue.ack(tr, task))[0] <= ack
    assert min(waits) == take
    assert max(waits) <= take + 2


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("kind", ["fifottl", "bag", "fair"])
def test_many_acks_together_wait_for_as_much_as_one(
    trips: tuple[Database, Trips], kind: str, moved: bool
) -> None:
    db, engine = trips
    queue, session = TaskQueue.create(db, "trips", kind, partitions=4), Session(db, ttr=1e9)
    if moved:
        queue.repartition(db, 8)
    for number in range(24):
        queue.put(db, number, key=number if kind == "fair" else None)
    tasks = [queue.take(db, session=session) for _ in range(24)]
    targets = [queue._target(db, task, None) for task in tasks]
    parts = calls_of(db, queue._shape).parts
    waits, done = trips_of(engine, db, lambda tr: parts.each(tr, targets, verbs.ack_each))
    assert ([task.id for task in done], waits) == ([task.id for task in tasks], 1)


def watches_of(db: Database) -> int:
    engine: Any = db.engine
    return int(engine._watches)


def test_a_process_waits_with_at_most_three_watches() -> None:
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "waits", partitions=16)
        other = Database(db.engine)
        stop = db.runtime.event()
        threads = [
            db.runtime.spawn(partial(_take, database, queue, stop), "waits")
            for database in (db, db, db, other, other)
        ]
        wait_until(lambda: watches_of(db) > 3)
        assert watches_of(db) <= 6  # two processes
        stop.set()
        for thread in threads:
            thread.join()


def _take(db: Database, queue: TaskQueue, stop: Any) -> None:
    with pytest.raises(fdbqueue.errors.WaitStopped):
        queue.take(db, 60, stop=stop)


def test_a_put_waits_for_room_with_one_watch() -> None:
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "full", "limfifottl", partitions=16, capacity=16)
        queue.put_many(db, range(16))
        stop = db.runtime.event()
        thread = db.runtime.spawn(partial(_put, db, queue, stop), "waits")
        wait_until(lambda: watches_of(db) > 0)
        assert watches_of(db) == 1
        stop.set()
        thread.join()


def _put(db: Database, queue: TaskQueue, stop: Any) -> None:
    with pytest.raises(fdbqueue.errors.WaitStopped):
        queue.put(db, 1, timeout=60, stop=stop)
