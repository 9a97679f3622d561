"""The reads that on_task_change costs: each payload once in a transaction, however many events it has."""

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.tasks.calls import calls_of
from tests.tasks.support import StillClock
from tests.tasks.test_callbacks import Told
from tests.tasks.trips import Trips

LARGE = "x" * (limits.RECORD_PAYLOAD_BYTES_MAX + 1)
"""A payload beside its record."""
TASKS = 3

Prepare = Callable[[Database, TaskQueue, Session], Any]


def put(**options: Any) -> Prepare:
    return lambda db, queue, _: [queue.put(db, LARGE, **options) for _ in range(TASKS)]


def take(**options: Any) -> Prepare:
    def prepare(db: Database, queue: TaskQueue, session: Session) -> list[Any]:
        put(**options)(db, queue, session)
        return [queue.take(db, 0, session=session) for _ in range(TASKS)]

    return prepare


def take_and_cancel(db: Database, queue: TaskQueue, session: Session) -> None:
    for task in take(ttr=5)(db, queue, session):
        queue.cancel(db, task.id)


@pytest.mark.parametrize(
    ("prepare", "events"),
    [
        (put(delay=5), ["delay"]),
        (put(ttl=5), ["delete", "ttl"]),
        (put(delay=5, ttl=1), ["delay", "delete", "ttl"]),
        (take(ttr=5), ["ttr"]),
        (take(ttr=6, ttl=5), ["ttr", "delete", "ttl"]),
        (take_and_cancel, ["delete", "cancel"]),
    ],
    ids=["due", "expired", "due-and-expired", "lapsed", "lapsed-and-expired", "cancelled"],
)
def test_a_sweep_reads_each_told_payload_once(
    trips: tuple[Database, Trips], clock: StillClock, prepare: Prepare, events: list[str]
) -> None:
    db, engine = trips
    session = Session(db, ttr=1e9)
    quiet, loud = (TaskQueue.create(db, name, "fifottl") for name in ("quiet", "loud"))
    for queue in (quiet, loud):
        prepare(db, queue, session)
    told = Told()
    loud.on_task_change(told)
    clock.advance(10)
    without, reads = (swept(db, engine, queue) for queue in (quiet, loud))
    assert reads - without == TASKS
    assert sorted(told.names(TASKS * len(events))) == sorted(events * TASKS)
    assert {data for data, _, _ in told.events} == {LARGE}


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_sweep_tells_no_more_payloads_than_fit(
    trips: tuple[Database, Trips], clock: StillClock, partitions: int
) -> None:
    """All of a batch might be too many to be read within the five seconds of a transaction."""
    db, engine = trips
    queue, told = TaskQueue.create(db, "q", "fifottl", partitions=partitions), Told()
    for _ in range(TASKS):
        queue.put(db, "x" * (limits.TRANSACTION_BYTES_MAX // 2 - limits.BATCH_BYTES_MAX), ttl=5)
    queue.on_task_change(told)
    clock.advance(10)
    left = []
    while stored(db, queue):
        swept(db, engine, queue)
        left.append(stored(db, queue))
    assert left == [1, 0]
    assert sorted(told.names(2 * TASKS)) == ["delete"] * TASKS + ["ttl"] * TASKS


def stored(db: Database, queue: TaskQueue) -> int:
    """The number of tasks, without a sweep."""
    keys = [source.shape.keys.tasks for source in calls_of(db, queue._shape).parts.holding()]
    return sum(len(db.get_range(under.start, under.stop)) for under in keys)


def swept(db: Database, engine: Trips, queue: TaskQueue) -> int:
    """The reads of a sweep of the queue."""
    before = engine.reads
    assert run(db, calls_of(db, queue._shape).parts.tidy)
    return engine.reads - before
