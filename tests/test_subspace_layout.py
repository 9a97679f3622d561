"""A queue over a subspace has its layout in a key beside it: a newer one is refused, and changes nothing."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, FairQueue, Queue, SimpleElementQueue
from fdbqueue.core.errors import DefinitionUnreadable, LayoutNewer
from fdbqueue.core.registry import LAYOUT_COLUMN
from fdbqueue.core.root_keys import LAYOUT

CALLS: dict[str, Callable[[Subspace], Callable[[Any], Any]]] = {
    "Queue.empty": lambda space: Queue(space).empty,
    "Queue.size": lambda space: Queue(space).size,
    "Queue.peek": lambda space: Queue(space).peek,
    "Queue.items": lambda space: lambda tr: Queue(space).items(tr, 9),
    "Queue.dequeue": lambda space: Queue(space).dequeue,
    "Queue.enqueue": lambda space: lambda tr: Queue(space).enqueue(tr, 1),
    "Queue.give_back": lambda space: lambda tr: Queue(space).give_back(tr, [1]),
    "Queue.clear": lambda space: Queue(space).clear,
    "FairQueue.get": lambda space: FairQueue(space, key=str).get,
    "FairQueue.put": lambda space: lambda tr: FairQueue(space, key=str).put(tr, 1),
    "FairQueue.size": lambda space: FairQueue(space, key=str).size,
    "ElementQueue.add": lambda space: lambda tr: ElementQueue(space, {"a": "string"}).add(tr, {"a": ""}),
    "SimpleElementQueue.add": lambda space: lambda tr: SimpleElementQueue(space).add(tr, b""),
    "SimpleElementQueue.count": lambda space: SimpleElementQueue(space).count,
}


def layout_key(space: Subspace) -> bytes:
    key: bytes = space.key() + layer.pack((LAYOUT_COLUMN,))
    return key


def rows(db: Database, space: Subspace) -> list[tuple[bytes, bytes]]:
    return [(bytes(row.key), bytes(row.value)) for row in db.get_range_startswith(space.key())]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_newer_layout_refuses_each_call(
    db: Database, space: Subspace, call: Callable[[Subspace], Callable[[Any], Any]]
) -> None:
    db[layout_key(space)] = layer.pack((LAYOUT + 1, "of a newer release"))
    before = rows(db, space)
    with pytest.raises(LayoutNewer) as refused:
        call(space)(db)
    with pytest.raises(LayoutNewer):
        fdbqueue.transactional(call(space))(db)
    assert (refused.value.layout, refused.value.name) == (LAYOUT + 1, repr(space.key()))
    assert rows(db, space) == before


@pytest.mark.parametrize("value", [(LAYOUT,), (LAYOUT, "appended", 7)], ids=repr)
def test_a_known_layout_is_read_with_appended_parts(
    db: Database, space: Subspace, value: tuple[Any, ...]
) -> None:
    db[layout_key(space)] = layer.pack(value)
    queue = Queue(space)
    queue.enqueue(db, "sound")
    assert Queue(space).dequeue(db) == "sound"
    queue.clear(db)
    assert rows(db, space)[-1] == (layout_key(space), layer.pack(value))


@pytest.mark.parametrize("value", [b"", b"\xff", layer.pack(("one",)), layer.pack((0,))], ids=repr)
def test_a_damaged_layout_is_refused(db: Database, space: Subspace, value: bytes) -> None:
    db[layout_key(space)] = value
    with pytest.raises(DefinitionUnreadable, match="cannot be read"):
        Queue(space).enqueue(db, 1)
    assert rows(db, space) == [(layout_key(space), value)]


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
    CALLS[name](space)(tr)
    db[layout_key(space)] = layer.pack((LAYOUT + 1,))
    with pytest.raises(fdb_module.FDBError) as conflict:
        tr.commit().wait()
    assert conflict.value.code == 1020
