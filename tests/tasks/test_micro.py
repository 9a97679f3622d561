"""Micro-queues: section 5.1 of the reference, conflicts, and at most `key_concurrency` taken tasks of a
key.
"""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Session, TaskQueue
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.keyed import Keyed
from tests.queue_support import faulty
from tests.support import NOT_COMMITTED
from tests.tasks.support import LONG_S, Bench, MakeBench, StillClock

both = pytest.mark.parametrize("kind", ["utube", "utubettl"])


@both
def test_keys_are_compared_by_value_and_type(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    keys = [1, "1", None, True, 1.0]
    tasks = b.queue.put_many(b.db, range(2)) + [b.queue.put(b.db, 9, key=key) for key in keys]
    assert [task.key for task in tasks] == [None, None, *keys]
    assert b.taken_data() == [0, 9, 9, 9, 9]  # those without a key share the one of None


def meets(b: Bench, mine: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> bool:
    """Whether a transaction that did `mine` fails because `theirs` has been committed meanwhile."""
    tr = b.db.create_transaction()
    mine(tr)
    fdbqueue.transactional(theirs, parameter="tr")(b.db)
    try:
        tr.commit().wait()
    except FDBError as error:
        return error.code == NOT_COMMITTED
    return False


def putting(b: Bench, key: str, **options: Any) -> Callable[[Any], Any]:
    return lambda tr: b.queue.put(tr, key, key=key, **options)


@both
def test_puts_meet_only_on_the_first_of_a_key(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    assert meets(b, putting(b, "a"), putting(b, "a"))
    assert not meets(b, putting(b, "a"), putting(b, "a"))
    assert not meets(b, putting(b, "b"), putting(b, "c"))
    b.take()
    assert not meets(b, putting(b, "a"), putting(b, "a"))  # nor in a busy key


@both
def test_a_put_conflicts_with_no_take_that_leaves_tasks(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    for word in ("a1", "a2", "a3", "b1"):
        b.put(word, key=word[0])
    take: Callable[[Any], Any] = lambda tr: b.queue.take(tr, session=b.session)  # noqa: E731
    assert not meets(b, putting(b, "a"), take)
    assert not meets(b, take, putting(b, "a"))  # of b
    held = b.queue.tasks(b.db, "t", 1)[0]
    assert not meets(b, putting(b, "a"), lambda tr: b.queue.ack(tr, held.id, session=b.session))


def test_a_take_reads_nothing_of_keys_that_are_busy(clock: StillClock) -> None:
    def read(busy: int) -> int:
        with fdbqueue.open("memory:", runtime=clock) as db:
            counted, engine = faulty(db, FDBError, clock)
            queue, session = TaskQueue.create(counted, "busy", "utube"), Session(counted, ttr=LONG_S)
            for key in range(busy):
                queue.put(counted, None, key=key)
                queue.put(counted, None, key=key)
                queue.take(counted, 0, session=session)
            queue.put(counted, "free", key="free")
            engine.read_most = 0
            task = queue.take(counted, 0, session=session)
            assert task.data == "free"
            found = engine.read_most
            counted.close()
            return found

    assert read(60) == read(3)


def test_a_damaged_state_frees_no_key_with_a_taken_task(bench: MakeBench) -> None:
    b = bench("utube")
    b.put("held", key="a")
    task = b.take()
    discipline: Any = b.queue._shape.discipline
    b.db[discipline.state_key(key_bytes("a"))] = b"damaged"
    b.put("waits", key="a")
    assert b.take() is None
    b.queue.ack(b.db, task)
    assert b.taken_data() == ["waits"]


def test_a_damaged_state_counts_the_taken_tasks_of_its_key(bench: MakeBench) -> None:
    """The counters of the key tell their number."""
    b = bench("utube", key_concurrency=2)
    for number in range(3):
        b.put(number, key="k")
    b.take()
    discipline = b.queue._shape.discipline
    assert isinstance(discipline, Keyed)
    b.db[discipline.state_key(key_bytes("k"))] = b"\xff damaged"
    assert b.taken_data() == [1]
