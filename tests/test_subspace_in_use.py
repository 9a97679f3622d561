"""What something else or a newer release has written is never taken for a queue, and never cleared."""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, FairQueue, PersistentQueue, Queue, SimpleElementQueue, TaskQueue
from fdbqueue.core.errors import DefinitionUnreadable, LayoutNewer, SubspaceInUse
from fdbqueue.core.once import sweep
from fdbqueue.core.registry import LAYOUT_COLUMN
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from tests.queue_support import QUEUE_CALLS

Rows = list[tuple[bytes, bytes]]


def stored(db: Database, space: Subspace) -> Rows:
    return [(bytes(row.key), bytes(row.value)) for row in db.get_range_startswith(space.key())]


@fdbqueue.transactional
def recipe_enqueue(tr: Any, space: Subspace, value: bytes) -> None:
    """As FoundationDB's page on queues has it."""
    under = space.range()
    last = tr.snapshot.get_range(under.start, under.stop, limit=1, reverse=True).to_list()
    index = space.unpack(last[0].key)[0] if last else 0
    tr[space[index + 1][os.urandom(20)]] = value


@fdbqueue.transactional
def fill(tr: Any, space: Subspace, *keys: tuple[Any, ...]) -> None:
    for key in keys:
        tr[space.pack(key)] = b"theirs"


@pytest.mark.parametrize("contended", ["staged", "simple"])
@pytest.mark.parametrize("call", QUEUE_CALLS.values(), ids=QUEUE_CALLS)
def test_a_queue_refuses_the_published_recipes_items(
    db: Database, space: Subspace, call: Callable[[Queue, Any], Any], contended: str
) -> None:
    recipe_enqueue(db, space, b"a")
    recipe_enqueue(db, space, b"b")
    before = stored(db, space)
    with pytest.raises(SubspaceInUse) as refused:
        call(Queue(space, contended=contended), db)
    with pytest.raises(SubspaceInUse):
        fdbqueue.transactional(lambda tr: call(Queue(space, contended=contended), tr))(db)
    assert stored(db, space) == before
    assert refused.value.prefix == space.key()
    assert refused.value.key in dict(before)


@pytest.mark.parametrize("drained", range(6))
def test_every_index_of_the_published_recipe_is_foreign(db: Database, space: Subspace, drained: int) -> None:
    for n in range(drained + 1):
        recipe_enqueue(db, space, b"%d" % n)
    for row in stored(db, space)[:-1]:
        del db[row[0]]
    with pytest.raises(SubspaceInUse):
        Queue(space).empty(db)


def test_a_waiting_dequeue_refuses_foreign_keys(db: Database, space: Subspace) -> None:
    recipe_enqueue(db, space, b"a")
    with pytest.raises(SubspaceInUse):
        Queue(space).dequeue(db, timeout=10)


@pytest.mark.parametrize(
    "key",
    [("text",), (b"bytes",), (1,), (2, 1), (3, b"x"), (4, 4), (5,), (9, 1), (0, "x"), (None,), (1.5,)],
    ids=repr,
)
def test_a_queue_refuses_keys_of_any_other_shape(db: Database, space: Subspace, key: tuple[Any, ...]) -> None:
    fill(db, space, key)
    for call in QUEUE_CALLS.values():
        with pytest.raises(SubspaceInUse):
            call(Queue(space), db)


def test_clear_asks_even_where_the_queue_is_known(db: Database, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, 1)
    assert not queue.empty(db)
    fill(db, space, ("theirs",))
    with pytest.raises(SubspaceInUse):
        queue.clear(db)
    assert queue.dequeue(db) == 1


def test_a_queue_knows_its_own_keys(db: Database, space: Subspace) -> None:
    Queue(space).enqueue_many(db, [1, "x" * 200_000])
    for look in (
        lambda queue: queue.size(db) == 2,
        lambda queue: queue.dequeue(db) == 1,
        lambda queue: queue.dequeue(db) == "x" * 200_000,
        lambda queue: queue.empty(db),
        lambda queue: queue.clear(db) is None,
        lambda queue: queue.enqueue(db, 1) is None,
    ):
        assert look(Queue(space))


def test_a_queue_in_use_reads_its_ends_only_once(db: Database, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, 1)
    queue.enqueue(db, 2)
    fill(db, space, ("theirs",))
    assert queue.dequeue(db) == 1  # a process that knows the queue pays nothing for it


def test_a_look_at_nothing_makes_no_subspace_known(db: Database, space: Subspace) -> None:
    queue = Queue(space)
    assert queue.empty(db)
    fill(db, space, ("theirs",))
    with pytest.raises(SubspaceInUse):
        queue.enqueue(db, 1)


def test_keys_of_the_root_make_no_subspace_known(db: Database, space: Subspace) -> None:
    Queue(space["other"], root=space["root"]).enqueue(db, 1)
    db.clear_range_startswith(space["other"].key())
    queue = Queue(space, root=space["root"])
    assert queue.empty(db)
    fill(db, space, ("theirs",))
    with pytest.raises(SubspaceInUse):
        queue.enqueue(db, 1)


def test_the_prefix_of_a_subspace_may_end_in_the_last_byte(db: Database, space: Subspace) -> None:
    """Keys beside it are none of its own."""
    queue = Queue(Subspace(rawPrefix=space.key() + b"\x01\xff"), root=space["root"])
    db[space.key() + b"\x02"] = b"beside"
    queue.enqueue(db, 1)
    assert queue.dequeue(db) == 1
    db[space.key() + b"\x01\xff\xffa"] = b"theirs"
    with pytest.raises(SubspaceInUse):
        queue.clear(db)


def test_the_root_of_a_queue_may_lie_in_its_subspace(db: Database, space: Subspace) -> None:
    for queue in (Queue(space, root=space["root"]), Queue(space, root=space["root"])):
        queue.enqueue(db, 1)
        queue.enqueue(db, 2)
        assert queue.dequeue(db) == 1
        queue.clear(db)


OTHERS: dict[str, Callable[[Subspace, Any], Any]] = {
    "FairQueue.get": lambda space, db: FairQueue(space, key=str).get(db),
    "FairQueue.put": lambda space, db: FairQueue(space, key=str).put(db, 1),
    "FairQueue.size": lambda space, db: FairQueue(space, key=str).size(db),
    "FairQueue.snapshot": lambda space, db: FairQueue(space, key=str).snapshot(db),
    "FairQueue.key_statistics": lambda space, db: FairQueue(space, key=str).key_statistics(db, 9),
    "ElementQueue.count": lambda space, db: ElementQueue(space).count(db),
    "ElementQueue.first": lambda space, db: ElementQueue(space).first(db),
    "ElementQueue.add": lambda space, db: ElementQueue(space, {"a": "string"}).add(db, {"a": ""}),
    "SimpleElementQueue.add": lambda space, db: SimpleElementQueue(space).add(db, b""),
    "SimpleElementQueue.purge": lambda space, db: SimpleElementQueue(space).purge(db),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("indexes", [1, 20])
def test_other_queues_refuse_the_published_recipes_items(
    db: Database, space: Subspace, call: Callable[[Subspace, Any], Any], indexes: int
) -> None:
    for _ in range(indexes):
        recipe_enqueue(db, space, b"a")
    before = stored(db, space)
    with pytest.raises(SubspaceInUse):
        call(space, db)
    assert stored(db, space) == before


def test_other_queues_know_their_own_keys(db: Database, space: Subspace) -> None:
    for n in range(3):
        FairQueue(space["fair"], key=str).put(db, n)
        SimpleElementQueue(space["simple"]).add(db, b"x")
        ElementQueue(space["pieces"], {"a": "string"}).add(db, {"a": "x" * 200_000})
    assert FairQueue(space["fair"], key=str).size(db) == 3
    for _ in range(3):
        assert FairQueue(space["fair"], key=str).take_item(db)[0]
    assert FairQueue(space["fair"], key=str).get(db) is None
    for queue in (SimpleElementQueue(space["simple"]), ElementQueue(space["pieces"])):
        assert queue.count(db) == 3
        name = queue.first(db)
        assert queue.copy().lock(db, name)
        queue.copy().remove(db, name)
        assert queue.copy().count(db) == 2


# Roots.

CREATE: dict[str, Callable[[Any, Subspace], Any]] = {
    "TaskQueue": lambda db, root: TaskQueue.create(db, "new", root=root),
    "if_not_exists": lambda db, root: TaskQueue.create(db, "new", if_not_exists=True, root=root),
    "Queue": lambda db, root: Queue.named(db, "new", root=root),
    "ElementQueue": lambda db, root: ElementQueue.named(db, "new", {"a": "string"}, root=root),
    "PersistentQueue": lambda db, root: PersistentQueue(db, "new", root=root),
}


@pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)
@pytest.mark.parametrize(
    "key",
    [("text",), (0,), (1,), (2, 1), (2, 1, "text"), (2, 1, 1), (2, 7), (4, 4), (99,), (0, 0, b"x"), (None,)],
    ids=repr,
)
def test_create_refuses_a_root_that_something_else_uses(
    db: Database, space: Subspace, create: Callable[[Any, Subspace], Any], key: tuple[Any, ...]
) -> None:
    fill(db, space, key)
    before = [row for row in stored(db, space) if row[0] == space.pack(key)]
    with pytest.raises(SubspaceInUse):
        create(db, space)
    assert [row for row in stored(db, space) if row[0] == space.pack(key)] == before
    assert fdbqueue.list_queues(db, root=space["nothing else"]) == []
    assert db[RootKeys(space).definition("new")] is None


@pytest.mark.parametrize("key", [("text",), (1,), (7, b"x"), (16, 16)], ids=repr)
def test_create_refuses_a_prefix_that_something_else_uses(
    db: Database, space: Subspace, key: tuple[Any, ...]
) -> None:
    TaskQueue.create(db, "first", root=space)
    under = RootKeys(space).contents(2)
    fill(db, under, key)
    before = stored(db, space)
    with pytest.raises(SubspaceInUse) as refused:
        TaskQueue.create(db, "second", root=space)
    assert refused.value.prefix == under.key()
    assert stored(db, under) == [(under.pack(key), b"theirs")]
    assert fdbqueue.list_queues(db, root=space) == ["first"]
    assert len(stored(db, space)) <= len(before) + 1  # a receipt of the refused call


def test_receipts_of_something_else_are_not_swept(db: Database, space: Subspace) -> None:
    fill(db, space, (3, b"x"), (3, b"x", 1), (3, "x", 1))
    before = stored(db, space)
    root = RootKeys(space)
    for place in (root.receipts.start, root.receipt(b"x", 0), root.receipts.stop):
        assert fdbqueue.transactional(lambda tr, place=place: sweep(tr, root, 2**62, place))(db) == 0
    assert stored(db, space) == before


def test_a_root_may_hold_sessions_before_its_first_queue(db: Database, space: Subspace) -> None:
    with fdbqueue.Session(db, "worker", root=space):
        TaskQueue.create(db, "new", root=space)
        TaskQueue.create(db, "newer", root=space)
    assert fdbqueue.list_queues(db, root=space) == ["new", "newer"]


# Layouts: a key beside the queue has its layout. A newer one is refused, and changes nothing.

CALLS: dict[str, Callable[[Subspace, Any], Any]] = {
    **{
        f"Queue.{name}": lambda space, tr, call=call: call(Queue(space), tr)
        for name, call in QUEUE_CALLS.items()
    },
    **OTHERS,
    "SimpleElementQueue.count": lambda space, tr: SimpleElementQueue(space).count(tr),
}


def layout_key(space: Subspace) -> bytes:
    key: bytes = space.key() + layer.pack((LAYOUT_COLUMN,))
    return key


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_newer_layout_refuses_each_call(
    db: Database, space: Subspace, call: Callable[[Subspace, Any], Any]
) -> None:
    db[layout_key(space)] = layer.pack((LAYOUT + 1, "of a newer release"))
    before = stored(db, space)
    with pytest.raises(LayoutNewer) as refused:
        call(space, db)
    with pytest.raises(LayoutNewer):
        fdbqueue.transactional(lambda tr: call(space, tr))(db)
    assert (refused.value.layout, refused.value.name) == (LAYOUT + 1, repr(space.key()))
    assert stored(db, space) == before


@pytest.mark.parametrize("value", [(LAYOUT,), (LAYOUT, "appended", 7)], ids=repr)
def test_a_known_layout_is_read_with_appended_parts(
    db: Database, space: Subspace, value: tuple[Any, ...]
) -> None:
    db[layout_key(space)] = layer.pack(value)
    queue = Queue(space)
    queue.enqueue(db, "sound")
    assert Queue(space).dequeue(db) == "sound"
    queue.clear(db)
    assert stored(db, space)[-1] == (layout_key(space), layer.pack(value))


@pytest.mark.parametrize("value", [b"", b"\xff", layer.pack(("one",)), layer.pack((0,))], ids=repr)
def test_a_damaged_layout_is_refused(db: Database, space: Subspace, value: bytes) -> None:
    db[layout_key(space)] = value
    with pytest.raises(DefinitionUnreadable, match="cannot be read"):
        Queue(space).enqueue(db, 1)
    assert stored(db, space) == [(layout_key(space), value)]


def test_a_handle_in_use_meets_a_newer_layout(db: Database, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, 1)
    assert queue.peek(db) == 1
    db[layout_key(space)] = layer.pack((LAYOUT + 1,))
    for call in (queue.dequeue, queue.size, lambda db: queue.enqueue(db, 2)):
        with pytest.raises(LayoutNewer):
            call(db)


@pytest.mark.commits_by_hand
@pytest.mark.parametrize("name", ["Queue.enqueue", "Queue.dequeue", "FairQueue.put", "ElementQueue.add"])
def test_a_call_conflicts_with_a_change_of_layout(
    db: Database, space: Subspace, fdb_module: ModuleType, name: str
) -> None:
    if name == "Queue.dequeue":
        Queue(space).enqueue(db, 1)
    tr = db.create_transaction()
    CALLS[name](space, tr)
    db[layout_key(space)] = layer.pack((LAYOUT + 1,))
    with pytest.raises(fdb_module.FDBError) as conflict:
        tr.commit().wait()
    assert conflict.value.code == 1020
