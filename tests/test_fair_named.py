"""A fair queue with a name: tools know it, its options are stored, and each put may give its key."""

from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, FairQueue, Overview, Queue, Session, TaskQueue, aio, verify
from fdbqueue.core.errors import (
    DefinitionUnreadable,
    FairQueueFull,
    InvalidArgument,
    QueueDropped,
    QueueExists,
    QueueKindMismatch,
    QueueNotFound,
)
from fdbqueue.core.registry import FAIR_ITEMS, Registry
from tests.aio.support import on_memory

Make = Callable[..., FairQueue]


@pytest.fixture
def named(db: Database, space: Subspace) -> Make:
    return lambda name="q", **options: FairQueue.named(db, name, root=space, **options)


def rest(queue: FairQueue, db: Database) -> list[Any]:
    return list(iter(lambda: queue.get(db), None))


def test_each_put_gives_its_key(db: Database, named: Make) -> None:
    queue = named()
    for item in ("a1", "a2", "b1"):
        queue.put(db, item, key=item[0])
    queue.put(db, "none", key=None)
    assert rest(queue, db) == ["a1", "b1", "none", "a2"]


def test_without_a_key_function_a_put_without_a_key_is_refused(db: Database, named: Make) -> None:
    for queue in (named(), named("bounded", capacity=3)):
        with pytest.raises(InvalidArgument, match="key must be given: the queue has no key function"):
            queue.put(db, "x")
        assert queue.size(db) == 0


def test_a_key_comes_before_the_key_function(db: Database, named: Make) -> None:
    queue = named(key=lambda item: item[0])
    for item in ("a1", "a2"):
        queue.put(db, item)
    queue.put(db, "a3", key="other")
    assert rest(queue, db) == ["a1", "a3", "a2"]


def test_its_options_are_stored(db: Database, named: Make) -> None:
    named(capacity=2, weights={"a": 2}, codec="msgpack")
    queue = named(create=False)
    for item in (b"1", b"2"):
        queue.put(db, item, key="a")
    with pytest.raises(FairQueueFull):
        queue.put(db, b"3", key="b")
    assert rest(queue, db) == [b"1", b"2"]


@pytest.mark.parametrize("other", [{"capacity": 3}, {"weights": {"a": 3}}, {"codec": "bytes"}])
def test_other_options_are_refused(named: Make, other: dict[str, Any]) -> None:
    named(capacity=2, weights={"a": 2})
    named(capacity=2)
    with pytest.raises(QueueExists):
        named(**other)


@pytest.mark.parametrize(
    "bad", [{"capacity": -1}, {"weights": {"a": 0}}, {"codec": "none"}, {"key": 7}, {"name": ""}]
)
def test_bad_options_make_no_queue(db: Database, space: Subspace, bad: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, fdbqueue.errors.UnknownCodec)):
        FairQueue.named(db, root=space, **{"name": "q", **bad})
    assert fdbqueue.list_queues(db, root=space) == []


def test_a_queue_of_another_kind_is_refused(db: Database, space: Subspace, named: Make) -> None:
    TaskQueue.create(db, "tasks", "fair", root=space)
    with pytest.raises(QueueKindMismatch):
        named("tasks")
    with pytest.raises(QueueNotFound):
        named("missing", create=False)
    named("fair")
    for open_it in (Queue.named, TaskQueue.open):
        with pytest.raises((QueueKindMismatch, fdbqueue.errors.UnknownKind)):
            open_it(db, "fair", root=space)


def test_a_dropped_queue_raises(db: Database, space: Subspace, named: Make) -> None:
    queue = named()
    queue.put(db, "x", key=1)
    Registry(space).drop(db, "q")
    for call in (lambda: queue.put(db, "x", key=1), lambda: queue.get(db), lambda: queue.peek(db)):
        with pytest.raises(QueueDropped):
            call()
    assert named().size(db) == 0


def test_tools_know_it(db: Database, space: Subspace, named: Make) -> None:
    queue = named(weights={"a": 2})
    for item in ("a1", "a2"):
        queue.put(db, item, key="a")
    [figures] = Overview(root=space).figures(db).queues
    assert (figures.kind, figures.items, figures.error) == (FAIR_ITEMS, 2, None)
    assert verify(db, root=space).findings == ()
    assert verify(db, "q", root=space).findings == ()


def test_a_newer_option_is_refused(db: Database, space: Subspace, named: Make) -> None:
    Registry(space).create(db, "q", FAIR_ITEMS, {"capacity": None, "newer": 1})
    with pytest.raises(DefinitionUnreadable, match="newer"):
        named()


def test_the_end_of_a_session_passes_it_by(db: Database, space: Subspace, named: Make) -> None:
    named()
    tasks = TaskQueue.create(db, "tasks", root=space)
    tasks.put(db, "x")
    with Session(db, root=space) as session:
        tasks.take(db, 0, session=session)
    assert tasks.statistics(db)["tasks"]["ready"] == 1


def test_a_peek_leaves_the_next_item(db: Database, named: Make) -> None:
    queue = named()
    assert queue.peek(db, "nothing") == "nothing"
    for item in ("a1", "a2", "b1"):
        queue.put(db, item, key=item[0])
    for item in ("a1", "b1", "a2"):
        assert (queue.peek(db), queue.get(db)) == (item, item)


def test_a_holder_shows_items_in_rounds(db: Database, named: Make) -> None:
    queue = named()
    for item in ("a1", "a2", "b1"):
        queue.put(db, item, key=item[0])
    holder = queue.holder(db)
    assert (holder.hold(9), queue.size(db)) == (["a1"], 2)
    assert holder.settle(0)
    assert (holder.hold(9), holder.settle(1)) == (["b1"], True)
    assert rest(queue, db) == ["a1", "a2"]
    assert holder.hold(1) == []


def test_a_holder_passes_what_cannot_be_read(db: Database, space: Subspace, named: Make) -> None:
    queue = named()
    for item in ("a1", "b1"):
        queue.put(db, item, key=item)
    keys = queue._items.keys
    first = min(bytes(row.key) for row in db.get_range(keys.tasks.start, keys.tasks.stop))
    record = bytes(db[first]).replace(b'"a1"', b'"a1 ')
    ready = next(row for row in db.get_range(keys.ready.start, keys.ready.stop) if b'"a1"' in row.value)
    db[first], db[ready.key] = record, bytes(ready.value).replace(b'"a1"', b'"a1 ')
    holder = queue.holder(db)
    assert (holder.hold(1), holder.settle(1)) == (["b1"], True)
    assert (queue.size(db), queue.unreadable(db)) == (0, 1)
    assert verify(db, root=space).findings == ()


@on_memory
async def test_awaited(db: aio.Database) -> None:
    queue = await aio.FairQueue.named(db, "q", capacity=5)
    await queue.put(db, "a1", key="a")
    assert (await queue.peek(db), await queue.waiting(db, 1)) == ("a1", [])
    assert await queue.get(db) == "a1"
