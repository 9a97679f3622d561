"""Micro-queues: section 5.1 of the reference, conflicts, and at most `key_concurrency` taken tasks of a
key.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.keyed import Keyed
from tests.queue_support import faulty
from tests.support import NOT_COMMITTED
from tests.tasks.support import LONG_S, Bench, StillClock

MakeBench = Callable[..., Bench]

both = pytest.mark.parametrize("kind", ["utube", "utubettl"])


def put_all(b: Bench, *words: str) -> dict[str, str]:
    """Tasks `a1`, `a2`, `b1`: the key is the letter. Their ids."""
    return {word: b.put(word, key=word[0]) for word in words}


def taken(b: Bench) -> Any:
    task = b.take()
    return task and task.data


@both
def test_keys_are_compared_by_value_and_type(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    keys = [1, "1", None, True, 1.0]
    tasks = b.queue.put_many(b.db, range(2)) + [b.queue.put(b.db, 9, key=key) for key in keys]
    assert [task.key for task in tasks] == [None, None, *keys]
    assert b.taken_data() == [0, 9, 9, 9, 9]  # those without a key share the one of None


@both
def test_nothing_is_kept_of_keys_that_have_no_tasks(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    put_all(b, "a1", "a2", "b1")
    while (task := b.take()) is not None:
        b.queue.ack(b.db, task)
    assert b.contents() == []


@pytest.mark.parametrize("key", [{"a": 1}, object(), "x" * limits.TASK_KEY_BYTES_MAX])
def test_a_key_that_cannot_be_one_is_refused_and_nothing_written(bench: MakeBench, key: Any) -> None:
    b = bench("utube")
    with pytest.raises(InvalidArgument):
        b.put("a1", key=key)
    assert b.contents() == []


def test_options_that_are_not_for_the_kind_are_refused(bench: MakeBench) -> None:
    b = bench("utube")
    for options in ({"delay": 1}, {"ttl": 1}, {"pri": 1}):
        with pytest.raises(UnsupportedOption):
            b.put("a1", key="a", **options)
    with pytest.raises(UnsupportedOption):
        TaskQueue.create(b.db, "plain", "fifo").put(b.db, 1, key=0)


# Who meets whom.


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
    put_all(b, "a1", "a2", "a3", "b1")
    take: Callable[[Any], Any] = lambda tr: b.queue.take(tr, session=b.session)  # noqa: E731
    assert not meets(b, putting(b, "a"), take)
    assert not meets(b, take, putting(b, "a"))  # of b
    held = b.queue.tasks(b.db, "t", 1)[0]
    assert not meets(b, putting(b, "a"), lambda tr: b.queue.ack(tr, held.id, session=b.session))


@both
def test_a_put_conflicts_with_the_ack_that_empties_its_key(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    put_all(b, "a1", "b1")
    first, second = b.take(), b.take()
    assert meets(b, putting(b, "a"), lambda tr: b.queue.ack(tr, first))
    b.queue.put(b.db, "a2", key="a")
    assert meets(b, lambda tr: b.queue.ack(tr, second), putting(b, "b"))
    b.queue.ack(b.db, second)
    assert b.taken_data() == ["a2", "b"]


def test_a_put_before_the_next_head_conflicts_with_a_take(bench: MakeBench) -> None:
    b = bench("utubettl", key_concurrency=3)
    for pri in (1, 9):
        b.put(pri, key="a", pri=pri)
    take: Callable[[Any], Any] = lambda tr: b.queue.take(tr, session=b.session)  # noqa: E731
    assert meets(b, putting(b, "a", pri=5), take)
    b.queue.put(b.db, 5, key="a", pri=5)
    assert b.taken_data() == [5, 9]


# Never more than allowed.


@pytest.mark.parametrize("concurrency", [1, 2])
def test_threads_never_hold_more_of_a_key_than_allowed(
    db: Database, space: Subspace, concurrency: int
) -> None:
    queue = TaskQueue.create(db, "threads", "utube", key_concurrency=concurrency, root=space)
    queue.put(db, None, key="warm")
    for number in range(30):
        for key in "abc":
            queue.put(db, number, key=key)
    held: Counter[str] = Counter()
    order: dict[str, list[int]] = {key: [] for key in "abc"}
    too_many: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        while (task := queue.take(db, 0)) is not None or queue.statistics(db)["tasks"]["total"]:
            if task is None:
                continue
            with lock:
                held[task.key] += 1
                order.setdefault(task.key, []).append(task.data)
                if held[task.key] > concurrency:
                    too_many.append(task.key)
            with lock:
                held[task.key] -= 1
            queue.ack(db, task)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert too_many == []
    for key in "abc":
        assert order[key] == list(range(30)) if concurrency == 1 else sorted(order[key]) == list(range(30))


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
            assert task is not None
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
