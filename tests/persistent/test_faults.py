"""Commits with an unknown result, and conflicts: each call happens once (section 2.5); bounded work (I9)."""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, PersistentQueue
from fdbqueue.embedded import FDBError
from tests.persistent.support import drained, fetched, filled
from tests.queue_support import FATES, faulty, most
from tests.tasks.support import StillClock


class Crash(Exception):
    pass


def a_life(db: Database) -> list[Any]:
    """Every call, with the results on the way and the contents at the end."""
    seen: list[Any] = []
    q = filled(PersistentQueue(db, "life", maxsize=9, owner="me"), "abcdef")
    proxy = q.connect()
    seen += fetched(proxy, 3)
    proxy.ack("b")
    proxy.task_done()
    with q.transaction():
        item = q.get_nowait()
        q.put(item + item)
        q.ack(item)
    try:
        with q.transaction():
            seen.append(q.get_nowait())
            q.put("never")
            raise Crash
    except Crash:
        seen.append(q.qsize())
    proxy.close()
    seen.append(q.get_nowait())
    unbounded = filled(PersistentQueue(db, "life"), "xy")
    seen += [unbounded.get_nowait(), unbounded.unacked]
    unbounded.close()
    again = PersistentQueue(db, "life", owner="me")
    seen.append(drained(again))
    seen.append(fdbqueue.statistics(db))
    return seen


@pytest.mark.parametrize("fate", FATES)
def test_every_call_happens_once_whatever_becomes_of_its_commits(fate: str) -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        expected = a_life(db)
    assert expected[-2] == ["c", "e", "f", "dd", "x", "y"]
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        unsure, engine = faulty(db, FDBError, clock)
        engine.fate = FATES[fate]
        assert a_life(unsure) == expected
        engine.fate = lambda _: (0, True)
        unsure.close()


def test_a_failed_ack_leaves_the_item_un_acked_for_a_retry() -> None:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        broken, engine = faulty(db, FDBError, clock)
        q = filled(PersistentQueue(broken, "q"), "abc")
        fetched(q, 3)
        engine.fate = lambda _: (2000, False)  # not retryable
        with pytest.raises(FDBError):
            q.ack("b")
        engine.fate = lambda _: (0, True)
        assert q.unacked == ["a", "b", "c"]
        q.ack("b")
        assert q.unacked == ["a", "c"]
        broken.close()


def measured(length: int) -> dict[str, tuple[int, int]]:
    """The cost of each call with `length` items waiting and as many un-acked."""
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        counted, engine = faulty(db, FDBError, clock)
        tasks = fdbqueue.TaskQueue.create(counted, "long")
        for _ in range(length // 100):
            tasks.put_many(counted, range(200))
        q = PersistentQueue(counted, "long", maxsize=10**6, owner="me")
        fetched(q, length)
        found = {
            "put": most(engine, lambda: q.put(1)),
            "get": most(engine, q.get_nowait),
            "ack": most(engine, q.task_done),
            "qsize": most(engine, q.qsize),
            "unit": most(engine, lambda: unit(q)),
            "close": most(engine, q.close),
        }
        again = PersistentQueue(counted, "long", owner="me")
        fetched(again, length)
        found["reopen"] = most(engine, lambda: PersistentQueue(counted, "long", owner="me"))
        counted.close()
        return found


def unit(q: PersistentQueue) -> None:
    with q.transaction():
        q.put(q.get_nowait())
        q.task_done()


def test_no_transaction_grows_with_the_queue() -> None:
    short, long = measured(250), measured(500)
    for call in short:
        assert long[call] <= short[call], call
    assert all(written <= 16 for call, (_, written) in long.items() if call not in ("close", "reopen"))
