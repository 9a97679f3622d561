"""The costs of a queue with partitions: round trips of its calls, watches of a process that waits."""

from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import calls_of
from tests.support import wait_until
from tests.tasks.trips import Trips, trips_of

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
