"""Commits with an unknown result, conflicts, queues of any length: once (I3), exact (I7), bounded (I9)."""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.embedded import FDBError
from tests.queue_support import FATES, faulty, most
from tests.tasks.support import LONG_S, StillClock, keeper


def a_life(db: Database, clock: StillClock) -> tuple[dict[str, dict[str, int]], list[Any]]:
    """Every verb, given a database, with the statistics after it and the results of the takes."""
    queue = TaskQueue.create(db, "life", "limfifottl", ttr=5, capacity=100)
    session = Session(db, ttr=LONG_S)
    took: list[Any] = []

    def take() -> fdbqueue.Task:
        task = queue.take(db, 0, session=session)
        assert task is not None
        took.append((task.data, task.attempts))
        return task

    queue.put_many(db, range(8))
    queue.put(db, 8, delay=1)
    queue.ack(db, take())
    queue.release(db, take(), delay=3)
    queue.touch(db, take(), 1)
    queue.bury(db, take())
    queue.delete(db, take())
    queue.kick(db, 2)
    took += [(task.data, task.attempts) for task in queue.take_many(db, 2, session=session)]
    clock.advance(30)
    keeper(db).tick()
    took += [(task.data, task.attempts) for task in queue.take_many(db, 3, session=session)]
    queue.release_all(db)
    take()
    session.end()
    return queue.statistics(db), took


class Ticking(StillClock):
    """A clock on which no two attempts have the same time."""

    def now(self) -> float:
        self.advance(0.000_001)
        return super().now()


@pytest.mark.parametrize("fate", FATES)
def test_every_verb_happens_once_whatever_becomes_of_its_commits(clock: StillClock, fate: str) -> None:
    with fdbqueue.open("memory:", runtime=clock) as db:
        expected = a_life(db, clock)
    clock = Ticking()
    with fdbqueue.open("memory:", runtime=clock) as db:
        unsure, engine = faulty(db, FDBError, clock)
        engine.fate = FATES[fate]
        assert a_life(unsure, clock) == expected
        engine.fate = lambda _: (0, True)
        unsure.close()


def measured(length: int) -> dict[str, tuple[int, int]]:
    """What each verb costs on a queue of `length` ready, delayed and buried tasks each."""
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        counted, engine = faulty(db, FDBError, clock)
        queue = TaskQueue.create(counted, "long", "fifottl", ttl=1_000, ttr=100)
        session = Session(counted, ttr=LONG_S)
        for _ in range(length // 100):
            queue.put_many(counted, range(100))
            queue.put_many(counted, range(100), delay=500)
            for task in queue.take_many(counted, 100, session=session):
                queue.bury(counted, task)
            queue.put_many(counted, range(100))
        task = queue.take(counted, 0, session=session)
        assert task is not None
        found = {
            "put": most(engine, lambda: queue.put(counted, 1)),
            "take": most(engine, lambda: queue.take(counted, 0, session=session)),
            "touch": most(engine, lambda: queue.touch(counted, task, 1)),
            "release": most(engine, lambda: queue.release(counted, task)),
            "bury": most(engine, lambda: queue.bury(counted, task.id)),
            "kick": most(engine, lambda: queue.kick(counted, 1)),
            "peek": most(engine, lambda: queue.peek(counted, task.id)),
            "delete": most(engine, lambda: queue.delete(counted, task.id)),
            "statistics": most(engine, lambda: queue.statistics(counted)),
            "tasks": most(engine, lambda: queue.tasks(counted, "~", 10)),
        }
        queue.take_many(counted, 1_000, session=session)
        found["release_all"] = most(engine, lambda: queue.release_all(counted))
        queue.take_many(counted, 1_000, session=session)
        found["end of a session"] = most(engine, session.end)
        clock.advance(500)  # everything is due, or has expired
        found["sweep"] = most(engine, keeper(counted).tick)
        found["truncate"] = most(engine, lambda: queue.truncate(counted))
        counted.close()
        return found


def test_no_transaction_grows_with_the_queue() -> None:
    short, long = measured(400), measured(1_200)
    for verb in short:
        assert long[verb] <= short[verb], verb
    assert all(written <= 12 for verb, (_, written) in long.items() if verb in ("put", "take", "release"))
    # A task's change writes at most its record and two keys of each of its states.
    assert all(written <= 6 * limits.VERB_BATCH + 10 for _, written in long.values())
