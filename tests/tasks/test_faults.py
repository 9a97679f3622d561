"""The bytes and keys of a transaction do not grow with the queue (I9)."""

import fdbqueue
from fdbqueue import Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.embedded import FDBError
from tests.queue_support import faulty, most
from tests.tasks.support import LONG_S, StillClock, keeper


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
