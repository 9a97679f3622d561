"""Partitions of recipe queues are verified like queues, with the keys that they share."""

from dataclasses import dataclass
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Flaw, Queue, Verification, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.partitions import SharedKeys, prefix_of
from fdbqueue.operate.verify import verify as verify_module
from fdbqueue.queues.recipe.items import COUNTER, QueueKeys, suffix
from tests.partitions.support import PARTITIONS
from tests.verifying.corruptions import BEYOND, MEND, OF_ALL_PARTITIONS, Plants, require_found_and_ended

LARGE = "x" * (3 * limits.PAYLOAD_PIECE_BYTES_MAX)


@dataclass
class Place:
    """A queue with items in each of its partitions, large ones among them."""

    db: Database
    root: Subspace
    queue: Queue

    @property
    def shared(self) -> SharedKeys:
        return SharedKeys(Subspace((), self.keys(0).prefix))

    def keys(self, partition: int) -> QueueKeys:
        zero = Subspace((), self.queue.partitions(self.db)[0].prefix)
        return QueueKeys(Subspace((), prefix_of(zero, partition)))

    def first(self, partition: int) -> bytes:
        """The key of the first item there."""
        items = self.keys(partition).items
        [row] = self.db.get_range(items.start, items.stop, limit=1)
        return bytes(row.key)

    def verify(self, mend: bool = False) -> Verification:
        return verify(self.db, "q", root=self.root, mend=mend)


@pytest.fixture
def place(db: Database, space: Subspace) -> Place:
    queue = Queue.named(db, "q", partitions=PARTITIONS, root=space)
    for value in (*range(8), LARGE, LARGE, LARGE, LARGE):
        queue.enqueue(db, value)
    return Place(db, space, queue)


PLANTS: Plants = {
    **OF_ALL_PARTITIONS,
    "an item": (lambda at, tr: tr.set(at.first(3), b"\x01"), Flaw.RECORD, "sets it aside"),
    "a counter": (lambda at, tr: tr.add(at.keys(2).size, COUNTER.pack(2)), Flaw.COUNTER, MEND),
    "a piece": (lambda at, tr: tr.set(at.keys(1).piece(suffix(9, b"r"), 0), b"x"), Flaw.PAYLOAD, MEND),
    "a floor": (lambda at, tr: tr.set(at.keys(2).floor, b"\xff" * 8), Flaw.VALUE, MEND),
    "a partition too many": (
        lambda at, tr: tr.set(at.keys(BEYOND).item(suffix(0, b"r")), b"\x001"),
        Flaw.STRAY,
        f"fdbqueue repartition q {BEYOND + 1}",
    ),
    "a place of a task": (lambda at, tr: tr.set(at.shared.moved(b"id"), b"\x01"), Flaw.UNKNOWN, "Another"),
}


def test_partitions_in_use_are_sound(place: Place) -> None:
    found = place.verify()
    assert (found.findings, found.uncompared, found.queues) == ((), (), 1)
    assert found.keys > 12 + 4 * 3


@pytest.mark.parametrize("name", PLANTS)
def test_a_corruption_of_a_partition_is_found_and_ends(place: Place, name: str) -> None:
    require_found_and_ended(place, *PLANTS[name])


def test_held_items_of_all_partitions_are_sound(place: Place) -> None:
    holder = place.queue.holder(place.db)
    while holder.hold(1) != [LARGE]:
        holder.settle(1)
    assert place.verify().findings == ()
    place.queue.repartition(place.db, 1)
    assert place.verify().findings == ()
    holder.settle(0)
    assert place.verify().findings == ()


def test_a_repartition_is_sound(place: Place) -> None:
    for count in (2, 7, 1):
        place.queue.repartition(place.db, count)
        assert place.verify().findings == ()
        place.queue.dequeue_many(place.db, 3)
        place.queue.enqueue(place.db, count)
        assert place.verify().findings == ()


def test_the_items_of_a_partition_too_many_can_be_taken(place: Place) -> None:
    """The command that its finding names makes it one of the queue."""
    plant, _, _ = PLANTS["a partition too many"]
    run(place.db, lambda tr: plant(place, tr))
    place.queue.clear(place.db)
    place.queue.repartition(place.db, BEYOND + 1)
    assert place.verify(mend=True).sound
    assert place.queue.dequeue(place.db) == 1


def test_a_queue_handle_and_all_queues_are_verified(place: Place, db: Database, space: Subspace) -> None:
    db.clear(place.shared.flag(1))
    for found in (verify(db, place.queue), verify(db, root=space)):
        assert [one.flaw for one in found.findings] == [Flaw.STATE]


def test_a_queue_without_partitions_needs_no_flag(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    queue.enqueue(db, 1)
    assert verify(db, "q", root=space).findings == verify(db, queue).findings == ()
    shared = SharedKeys(Subspace((), queue.partitions(db)[0].prefix))
    db[shared.flag(0)] = b""
    assert [one.flaw for one in verify(db, "q", root=space).findings] == [Flaw.STRAY]


def test_a_handle_is_verified_by_the_present_plan(db: Database, space: Subspace) -> None:
    """Another handle has given the queue partitions since."""
    old, other = Queue.named(db, "q", root=space), Queue.named(db, "q", root=space)
    old.enqueue(db, 1)
    other.repartition(db, 2)
    shared = SharedKeys(Subspace((), other.partitions(db)[0].prefix))
    assert verify(db, old).findings == ()
    db.clear(shared.flag(0))
    assert [one.flaw for one in verify(db, old).findings] == [Flaw.STATE]


def test_a_flag_stays_if_its_partition_opens_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that has seen the flag does not set it again."""
    mend, opened = verify_module._mend_again, list[int]()
    place.db[place.shared.flag(BEYOND)] = b""

    def open_and_mend(*given: Any) -> None:
        mend(*given)
        if not opened:
            opened.append(place.queue.repartition(place.db, BEYOND + 1).partitions)

    monkeypatch.setattr(verify_module, "_mend_again", open_and_mend)
    place.verify(mend=True)
    assert place.db[place.shared.flag(BEYOND)] is not None
