"""The age of the first ready task of each busy key, and the backlog as a time."""

from dataclasses import replace
from typing import Any

import pytest
from fdb import tuple as layer

import fdbqueue
from fdbqueue import Database, Overview, TaskQueue
from fdbqueue.core import limits
from fdbqueue.operate.backlog import Backlog, Pace, backlog_of, phrase
from fdbqueue.tasks.stored.keyed import Keyed
from tests.overview.test_figures import busiest_of, clock, still, trips
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips, trips_of

__all__ = ["clock", "still", "trips"]  # fixtures


def ages_of(overview: Overview, db: Database) -> dict[Any, float | None]:
    return {key.key: key.first_age_s for key in busiest_of(overview.figures(db))}


@pytest.mark.parametrize("kind", ["fair", "utube", "utubettl"])
def test_each_busy_key_has_the_age_of_its_first(still: tuple[Database, StillClock], kind: str) -> None:
    db, clock = still
    queue, overview = TaskQueue.create(db, "q", kind), Overview(keys=2)
    for key, ready in (("a", 3), ("b", 2), ("c", 1)):
        queue.put_many(db, range(ready), key=key)
        clock.advance(10)
    assert ages_of(overview, db) == {"a": None, "b": None}
    assert ages_of(overview, db) == {"a": pytest.approx(30), "b": pytest.approx(20)}
    queue.take(db, 0)
    clock.advance(5)
    queue.put(db, "new", key="a")
    assert ages_of(overview, db)["a"] == pytest.approx(35)  # that of the second one


def test_a_key_of_two_partitions_has_the_larger_age(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    queue, overview = TaskQueue.create(db, "q", "utube", partitions=2), Overview()
    queue.put_many(db, range(3), key="a")
    clock.advance(10)
    queue.put_many(db, range(3), key="b")
    ages_of(overview, db)
    assert ages_of(overview, db) == {"a": pytest.approx(10), "b": pytest.approx(0)}


def test_a_damaged_first_task_has_no_age(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    queue, overview = TaskQueue.create(db, "q", "fair"), Overview()
    queue.put_many(db, range(3), key="a")
    ages_of(overview, db)
    discipline = queue._shape.discipline
    assert isinstance(discipline, Keyed)
    fifo = discipline.fifo(layer.pack(("a",)))

    @fdbqueue.transactional
    def damage(tr: Any) -> None:
        [row] = tr.get_range(fifo.start, fifo.stop, limit=1)
        tr[row.key] = b"\xc1"

    damage(db)
    assert ages_of(overview, db) == {"a": None}


def reads_of(
    trips: tuple[Database, Trips], keys: int, tasks: int, chronicle: bool = False
) -> list[tuple[int, int]]:
    """The round trips and reads of the second look and the third."""
    db, engine = trips
    queue = TaskQueue.create(db, f"{db.runtime.random()}", "fair", chronicle=chronicle)
    for key in range(keys):
        queue.put_many(db, range(tasks), key=key)
    overview, found = Overview(queue.name, queues_only=True), []
    overview.figures(db)
    for _ in range(2):
        before = engine.reads
        waited, _ = trips_of(engine, db, overview.figures)
        found.append((waited, engine.reads - before))
    return found


def test_ages_cost_a_number_of_reads_and_no_round_trip(trips: tuple[Database, Trips]) -> None:
    """A hundred times as many tasks, and ten times as many keys, are read by as many reads."""
    assert reads_of(trips, 10, 2) == reads_of(trips, 100, 20)
    [(waited, reads), _] = reads_of(trips, 1, 1)
    [(as_long, more), _] = reads_of(trips, 10, 1)
    assert (as_long, more) == (waited, reads + 9) == (1, more)


def test_times_cost_a_number_of_reads_and_no_round_trip(trips: tuple[Database, Trips]) -> None:
    """Those of the last hour, of the whole queue and of each key that the last look has told."""
    [(waited, reads), _] = reads_of(trips, 10, 2)
    assert reads_of(trips, 10, 2, chronicle=True)[0] == (waited, reads + 11 * limits.TIMES_SPANS)
    assert reads_of(trips, 100, 20, chronicle=True) == reads_of(trips, 10, 2, chronicle=True)


@pytest.mark.parametrize(
    ("ready", "put", "done", "workers", "wanted"),
    [
        (0, 5, 0, 0, Backlog(0, 0, 0)),
        (600, 0, 2, 2, Backlog(300, 300, 150)),
        (600, 1, 2, 2, Backlog(300, 600, 200)),
        (600, 3, 2, 2, Backlog(300, None, 600)),
        (600, 4, 2, 2, Backlog(300, None, None)),
        (600, 0, 2, 0, Backlog(300, 300, None)),
        (600, 1, 0, 3, Backlog(None, None, None)),
    ],
)
def test_a_backlog_is_a_time(ready: int, put: float, done: float, workers: int, wanted: Backlog) -> None:
    assert backlog_of(ready, put, done, workers) == wanted


def test_a_backlog_has_a_phrase() -> None:
    assert phrase(Backlog(0, 0, 0)) == "nothing waits"
    assert phrase(Backlog(300, 600, 200)) == "empty in 10m, with 2 more workers in 3m20s"
    assert phrase(Backlog(300, None, None)) == "never empty at this rate"


def test_the_pace_is_that_of_the_last_minutes(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    TaskQueue.create(db, "q")
    [queue] = Overview().figures(db).queues
    assert queue.tasks is not None
    pace, idle = Pace(), queue.tasks

    def at(now: float, ack: int, ready: int = 100) -> float | None:
        found = pace.backlog(replace(idle, ready=ready, calls={**idle.calls, "ack": ack}), now)
        return None if found is None else found.seconds

    assert at(0, 0) is None
    assert at(0, 0, ready=0) == 0
    assert at(10, 100) == pytest.approx(10)
    assert at(10 + limits.PACE_S, 100) is None  # in these minutes, none has ended
    assert at(20 + limits.PACE_S, 400) == pytest.approx(100 * (10 + limits.PACE_S) / 300)
    assert at(30 + limits.PACE_S, 4) is None  # the queue was created again
