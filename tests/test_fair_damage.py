"""Damaged items of a fair queue, and items of another type: what each costs, beside it and afterwards."""

from typing import Any

import msgspec
import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, FairQueue
from fdbqueue.core.database import run
from fdbqueue.core.errors import PayloadMismatch
from fdbqueue.core.line.source import Delivery
from fdbqueue.tasks.records.keys import PAYLOAD, TaskKeys

LARGE = "x" * 200_000


class Point(msgspec.Struct):
    x: int


def fair_of(space: Subspace, **options: Any) -> FairQueue:
    return FairQueue(space[1], key=lambda item: len(str(item)), root=space[0], **options)


def pieces(db: Database, space: Subspace) -> list[Any]:
    """Of the payloads that lie beside their records."""
    keys = TaskKeys(space[1])
    return list(db.get_range(PAYLOAD.start(keys.prefix), keys.ready.start))


def damage(db: Database, space: Subspace, payload: bytes) -> None:
    for row in db.get_range(space[1].key(), space[1].key() + b"\xff"):
        if payload in row.value:
            db[row.key] = row.value.replace(payload, b"{" * len(payload))


def test_a_take_teaches_a_fair_queue_its_codec(db: Database, space: Subspace) -> None:
    """Damage is passed over only as long as the codec of the handle may be the wrong one."""
    writer, reader = fair_of(space), fair_of(space)
    writer.put(db, "good")
    writer.put(db, "damaged")
    damage(db, space, b'"damaged"')
    other = Database(db.engine)
    assert reader.get(other) == "good"
    assert reader.get(other) is None
    assert (writer.size(db), writer.unreadable(db)) == (0, 1)
    other.close()


def test_an_item_set_aside_leaves_no_piece_in_its_place(db: Database, space: Subspace) -> None:
    queue = fair_of(space)
    queue.put(db, LARGE)
    first, *others = pieces(db, space)
    db.clear(first.key)
    assert queue.get(db) is None
    [aside] = queue.aside(db, 9)
    assert list(aside.values[1:]) == [bytes(piece.value) for piece in others]
    assert pieces(db, space) == []


@pytest.mark.parametrize("beside", [False, True])
def test_an_item_passed_over_keeps_its_pieces(db: Database, space: Subspace, beside: bool) -> None:
    """Alone in its transaction, or with an item that is handed out."""
    plain, typed = fair_of(space), fair_of(space, type=Point)
    plain.put(db, {"y": LARGE})
    if beside:
        plain.put(db, {"x": 1})
        assert run(db, lambda tr: typed._items.taker.take(tr, 2, b"", 0).values) == [(Point(1), 1)]
    with pytest.raises(PayloadMismatch):
        typed.get(db)
    assert plain.get(db) == {"y": LARGE}


def test_a_delivery_with_a_damaged_record_is_set_aside(db: Database, space: Subspace) -> None:
    """The others of its batch are handed out."""
    queue = fair_of(space)
    for item in ("a", LARGE):
        queue.put(db, item)
    items = queue._items
    whole, large = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 2, 0)), b""))
    damaged = Delivery(large.id, b"damaged")
    assert run(db, lambda tr: items.collect(tr, [damaged, whole])) == [("a", 1)]
    [aside] = queue.aside(db, 9)
    assert aside.values[0] == b"damaged"
    assert pieces(db, space) == []


def test_a_delivery_damaged_on_its_way_back_is_set_aside(db: Database, space: Subspace) -> None:
    queue = fair_of(space)
    for item in ("a", "bb"):
        queue.put(db, item)
    items = queue._items
    first, second = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 2, 0)), b""))
    run(db, lambda tr: items.give_back(tr, [Delivery(first.id, b"damaged"), second]))
    assert (queue.get(db), queue.get(db)) == ("bb", None)
    assert (queue.size(db), queue.unreadable(db)) == (0, 1)


@pytest.mark.parametrize("value", [b"\xff" * 8, b"\xff" * 20])
def test_a_damaged_floor_stops_no_put(db: Database, space: Subspace, value: bytes) -> None:
    queue = FairQueue(space[1], key=lambda _: 0, root=space[0])
    queue.put(db, "a")
    db[queue._items.floor] = value
    queue.put(db, "b")
    assert [queue.get(db) for _ in range(3)] == ["a", "b", None]
