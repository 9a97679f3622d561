"""The recipe queue, one call at a time: every verb, with a database and with a transaction."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Queue
from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import run
from fdbqueue.core.errors import (
    DatabaseClosed,
    InvalidArgument,
    NotADatabase,
    PayloadTooLarge,
    TooMuchForOneTransaction,
    UnknownCodec,
)
from fdbqueue.queues.recipe.items import COUNTER, QueueKeys, Recipe
from tests.queue_support import QUEUE_CALLS
from tests.support import NOT_COMMITTED, begin, commit_code


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space[0], root=space[1])


def test_many_values_that_are_given_back_keep_their_order(db: Database, queue: Queue) -> None:
    """All have one index: the number behind it has two bytes."""
    queue.give_back(db, range(300))
    assert queue.dequeue_many(db, 300) == [*range(300)]


def test_a_delivery_below_index_0_keeps_the_order(db: Database, queue: Queue, space: Subspace) -> None:
    """It moves the floor of the index, which has no sign."""
    queue.give_back(db, ["b"])
    queue.give_back(db, ["a"])
    recipe = Recipe(QueueKeys(space[0]), codec_named("json"))
    run(db, lambda tr: recipe.deliver(tr, list(recipe.available(tr, 1, 0)), b""))
    assert db[recipe.keys.floor] == COUNTER.pack(1)
    queue.enqueue(db, "c")
    assert queue.dequeue_many(db, 9) == ["b", "c"]


def test_none_is_a_value(db: Database, queue: Queue) -> None:
    queue.enqueue(db, None)
    assert queue.dequeue(db, "nothing") is None


def test_a_value_over_the_value_limit_returns_whole(db: Database, queue: Queue, space: Subspace) -> None:
    large = "".join(map(str, range(100_000)))
    assert len(large) > 4 * limits.PAYLOAD_PIECE_BYTES_MAX
    queue.enqueue_many(db, ["before", large])
    queue.enqueue(db, "after")
    assert queue.items(db, 9) == ["before", large, "after"]
    assert queue.dequeue_many(db, 9) == ["before", large, "after"]
    left = space[0].range()
    assert [row.key for row in db.get_range(left.start, left.stop)] == [space[0].pack((2,))]


def test_the_largest_payload_fits_and_one_byte_more_does_not(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], codec="bytes", root=space[1])
    largest = bytes(limits.PAYLOAD_BYTES_MAX)
    queue.enqueue(db, largest)
    assert queue.dequeue(db) == largest
    with pytest.raises(PayloadTooLarge) as raised:
        queue.enqueue(db, largest + b"x")
    assert raised.value.size_bytes == limits.PAYLOAD_BYTES_MAX + 1
    assert queue.empty(db)


# In a transaction: together with everything else in it, or not at all.


def test_a_call_without_a_commit_has_no_effect(db: Database, queue: Queue) -> None:
    queue.enqueue(db, "a")
    tr = db.create_transaction()
    assert queue.dequeue(tr) == "a"
    queue.enqueue(tr, "b")
    tr.cancel()
    assert queue.items(db, 9) == ["a"]
    assert queue.size(db) == 1


def test_a_transaction_sees_its_own_changes(db: Database, queue: Queue) -> None:
    tr = db.create_transaction()
    queue.enqueue(tr, "a")
    queue.enqueue_many(tr, ["b", "c" * 100_000])
    assert (queue.size(tr), queue.peek(tr), queue.empty(tr)) == (3, "a", False)
    assert queue.dequeue_many(tr, 9) == ["a", "b", "c" * 100_000]
    assert queue.dequeue(tr, "nothing") == "nothing"
    tr.commit().wait()
    assert queue.size(db) == 0


def test_an_enqueue_does_not_disturb_a_dequeue(db: Database, queue: Queue) -> None:
    queue.enqueue(db, "a")
    taker, putter = begin(db), begin(db)
    assert queue.dequeue(taker) == "a"
    queue.enqueue(putter, "b")
    assert commit_code(putter) == commit_code(taker) == 0


RELIES: dict[str, tuple[str, Callable[[Queue, Any], Any], Callable[[Queue, Any], Any]]] = {
    "nothing": ("", Queue.dequeue, lambda queue, db: queue.enqueue(db, "x")),
    "too few": ("a", lambda queue, tr: queue.dequeue_many(tr, 2), lambda queue, db: queue.enqueue(db, "x")),
    "empty": ("", Queue.empty, lambda queue, db: queue.enqueue(db, "x")),
    "not empty": ("a", Queue.empty, Queue.dequeue),
    "a peek": ("ab", Queue.peek, Queue.dequeue),
    "a take, taken": ("ab", Queue.dequeue, Queue.dequeue),
    "a take, and a value before it": ("b", Queue.dequeue, lambda queue, db: queue.give_back(db, ["a"])),
    "a take, cleared": ("a", Queue.dequeue, Queue.clear),
}


@pytest.mark.parametrize(("before", "look", "change"), RELIES.values(), ids=RELIES)
def test_an_answer_conflicts_with_a_change_of_it(
    db: Database,
    queue: Queue,
    space: Subspace,
    before: str,
    look: Callable[[Queue, Any], Any],
    change: Callable[[Queue, Any], Any],
) -> None:
    queue.enqueue_many(db, list(before))
    tr = begin(db)
    look(queue, tr)
    tr[space.pack(("saw",))] = b""
    change(queue, db)
    assert commit_code(tr) == NOT_COMMITTED


def test_a_take_of_several_conflicts_with_one_between_them(
    db: Database, queue: Queue, space: Subspace
) -> None:
    """A request in the line may take an item that is not the first."""
    queue.enqueue_many(db, list("abc"))
    taker, items = begin(db), QueueKeys(space).items
    assert queue.dequeue_many(taker, 3) == ["a", "b", "c"]
    del db[db.get_range(items.start, items.stop)[1].key]
    assert commit_code(taker) == NOT_COMMITTED


@pytest.mark.parametrize("look", [Queue.size, lambda queue, tr: queue.items(tr, 9)], ids=["size", "items"])
def test_looking_in_conflicts_with_nothing(
    db: Database, queue: Queue, space: Subspace, look: Callable[[Queue, Any], Any]
) -> None:
    queue.enqueue(db, "a")
    tr = begin(db)
    look(queue, tr)
    tr[space.pack(("looked",))] = b""
    queue.dequeue(db)
    assert commit_code(tr) == 0


def test_a_raw_engine_database_will_do(engine_db: Any, queue: Queue) -> None:
    queue.enqueue(engine_db, "a")
    tr = engine_db.create_transaction()
    queue.enqueue(tr, "b")
    tr.commit().wait()
    assert queue.dequeue_many(engine_db, 9) == ["a", "b"]


def test_queues_beside_each_other_do_not_meet(db: Database, space: Subspace) -> None:
    first, second = Queue(space[0]), Queue(space[1])
    first.enqueue(db, 1)
    second.enqueue(db, 2)
    first.clear(db)
    assert second.dequeue_many(db, 9) == [2]


# Bad input: an error that names it, and nothing written.


@pytest.mark.parametrize("target", [None, 1, "db", pytest.param(object(), id="an object")], ids=repr)
def test_neither_database_nor_transaction(queue: Queue, target: Any) -> None:
    for call in QUEUE_CALLS.values():
        with pytest.raises(NotADatabase):
            call(queue, target)


def test_a_snapshot_cannot_be_written(db: Database, queue: Queue) -> None:
    snapshot = db.create_transaction().snapshot
    for name in ("enqueue", "dequeue", "clear"):
        with pytest.raises(NotADatabase):
            QUEUE_CALLS[name](queue, snapshot)


def test_a_closed_database(db: Database, queue: Queue) -> None:
    db.close()
    for call in QUEUE_CALLS.values():
        with pytest.raises(DatabaseClosed):
            call(queue, db)


@pytest.mark.parametrize("n", [-1, 0, 1.5, "3", None, True], ids=repr)
def test_an_n_that_is_no_count(db: Database, queue: Queue, n: Any) -> None:
    for call in (lambda: queue.dequeue_many(db, n), lambda: queue.items(db, n)):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", None], ids=repr)
def test_a_timeout_that_is_no_duration(db: Database, queue: Queue, timeout: Any) -> None:
    with pytest.raises(InvalidArgument):
        queue.dequeue(db, timeout=timeout)


def test_a_transaction_cannot_wait(db: Database, queue: Queue) -> None:
    with pytest.raises(InvalidArgument):
        queue.dequeue(db.create_transaction(), timeout=1)


def test_too_much_for_one_transaction(db: Database, queue: Queue) -> None:
    with pytest.raises(TooMuchForOneTransaction):
        queue.enqueue_many(db, range(limits.BATCH_ITEMS_MAX + 1))
    with pytest.raises(TooMuchForOneTransaction):
        queue.enqueue_many(db, ["x" * 600_000] * 2)
    with pytest.raises(TooMuchForOneTransaction):
        queue.dequeue_many(db, limits.BATCH_ITEMS_MAX + 1)
    assert queue.empty(db)


def test_one_unsupported_value_refuses_the_whole_batch(db: Database, queue: Queue) -> None:
    with pytest.raises(TypeError):
        queue.enqueue_many(db, [1, {2}, 3])
    assert queue.empty(db)


def test_bad_construction(space: Subspace) -> None:
    with pytest.raises(UnknownCodec):
        Queue(space, codec="pickle")
    with pytest.raises(InvalidArgument):
        Queue(space, contended="maybe")
    with pytest.raises(TypeError):
        Queue(b"prefix")
