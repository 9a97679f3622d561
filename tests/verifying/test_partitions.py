"""Partitions are verified like queues, with the keys that they share; planted corruptions are found."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from msgspec.structs import replace

from fdbqueue import Database, Failure, Flaw, Session, TaskQueue, Verification, verify
from fdbqueue.core.database import run
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.key_counts import slug_of, state_of, state_to_bytes
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import COUNTER_NAMES, LIVE_NAMES, TaskKeys, id_bytes, packed
from tests.partitions.support import PARTITIONS, key_in, moving_key
from tests.verifying.corruptions import BEYOND, MEND, OF_ALL_PARTITIONS, Plants, require_found_and_ended
from tests.verifying.places import missing_id


@dataclass
class Place:
    """A queue of partitions with tasks in each state, in all of them."""

    db: Database
    root: Subspace
    queue: TaskQueue
    session: Session

    def shape(self, partition: int) -> Shape:
        return self.queue._shape.partition(partition)

    def keys(self, partition: int) -> TaskKeys:
        return self.shape(partition).keys

    @property
    def shared(self) -> Any:
        return self.queue._shape.shared

    def id_in(self, partition: int) -> bytes:
        """The first task there."""
        keys = self.keys(partition).tasks
        [row] = self.db.get_range(keys.start, keys.stop, limit=1)
        return bytes(row.key)[len(keys.start) :]

    def keyed(self, partition: int) -> Keyed:
        discipline = self.shape(partition).discipline
        assert isinstance(discipline, Keyed)
        return discipline

    def verify(self, mend: bool = False) -> Verification:
        return verify(self.db, "q", root=self.root, mend=mend)


@pytest.fixture
def place(db: Database, space: Subspace) -> Iterator[Place]:
    queue = TaskQueue.create(db, "q", "utubettl", root=space, retain_s=600, partitions=PARTITIONS)
    with Session(db, ttr=600, root=space) as session:
        for partition in range(PARTITIONS):
            key = key_in(partition)
            for n in range(3):
                queue.put(db, n, key=key)
            queue.put(db, "later", key=key, delay=900)
            queue.bury(db, queue.put(db, "buried", key=key).id, failure=Failure("Odd"))
            queue.delete(db, queue.put(db, "ended", key=key).id)
            queue.take(db, 0, session=session)
        for partition in range(PARTITIONS):
            queue.put(db, "other", key=key_in(partition, nth=1))
        yield Place(db, space, queue, session)


def counted(at: Place, tr: Any) -> None:
    tr.add(at.keys(2).counters, packed(COUNTER_NAMES, {"ready": 2}))


def counted_by_key(at: Place, tr: Any) -> None:
    tr.add(at.keyed(2).counts.counts_key(slug_of(key_bytes(key_in(2)))), packed(LIVE_NAMES, {"buried": 1}))


def held(at: Place, tr: Any) -> None:
    keyed, key = at.keyed(1), key_bytes(key_in(1))
    state = state_of(bytes(tr[keyed.state_key(key)]))
    if state.pointer:
        tr.clear(at.keys(1).ready_at(state.pointer))
    tr.set(keyed.state_key(key), state_to_bytes(replace(state, pointer=b"", head=b"", held=True)))


PLANTS: Plants = {
    **OF_ALL_PARTITIONS,
    "a record": (lambda at, tr: tr.set(at.keys(3).task(at.id_in(3)), b"no record"), Flaw.RECORD, MEND),
    "a counter": (counted, Flaw.COUNTER, MEND),
    "a counter of a task key": (counted_by_key, Flaw.KEY_COUNTER, MEND),
    "a counter of a class": (
        lambda at, tr: tr.add(at.keys(1).class_count("Odd"), b"\x01" + bytes(7)),
        Flaw.COUNTER,
        MEND,
    ),
    "a task that has not moved": (
        lambda at, tr: tr.set(at.shared.moved(at.id_in(1)), b"\x03"),
        Flaw.STRAY,
        MEND,
    ),
    "a task that has moved nowhere": (
        lambda at, tr: tr.set(at.shared.moved(missing_id()), b"\x03"),
        Flaw.STRAY,
        MEND,
    ),
    "a move without a partition": (
        lambda at, tr: tr.set(at.shared.moved(at.id_in(1)), b""),
        Flaw.VALUE,
        MEND,
    ),
    "a held task key": (held, Flaw.KEY_STATE, MEND),
    "a pause": (lambda at, tr: tr.set(at.keys(2).paused, b""), Flaw.STRAY, MEND),
    "a partition too many": (
        lambda at, tr: tr.set(at.keys(BEYOND).delayed_at(missing_id()), b""),
        Flaw.STRAY,
        "fdbqueue repartition q 7",
    ),
}


def test_partitions_in_use_are_sound(place: Place) -> None:
    found = place.verify()
    assert (found.findings, found.uncompared, found.queues) == ((), (), 1)
    assert found.keys > 25 * PARTITIONS


@pytest.mark.parametrize("name", PLANTS)
def test_a_corruption_of_a_partition_is_found_and_ends(place: Place, name: str) -> None:
    require_found_and_ended(place, *PLANTS[name])


def test_a_repartition_and_moved_tasks_are_sound(place: Place) -> None:
    db, queue = place.db, place.queue
    for count in (2, 7):
        while not queue.repartition(db, count).is_finished:
            assert place.verify().findings == ()
            for task in iter(lambda: queue.take(db, 0, session=place.session), None):
                queue.ack(db, task)
            queue.release_all(db)
        for n in range(20):
            queue.put(db, n, key=key_in(n % PARTITIONS))
        assert place.verify().findings == ()
        queue.kick(db, 2)
        assert place.verify().findings == ()


def test_a_task_key_that_waits_for_its_old_partition_is_sound(place: Place) -> None:
    """Its mending, and that of its counter, leaves it held."""
    key = moving_key(1, PARTITIONS, 8)
    place.queue.put(place.db, "old", key=key)
    assert not place.queue.repartition(place.db, 8).is_finished
    id_ = place.queue.put(place.db, "new", key=key).id
    there = id_bytes(id_)[1]
    assert there != 1
    counter = place.keyed(there).counts.counts_key(slug_of(key_bytes(key)))
    assert place.verify().findings == ()
    run(place.db, lambda tr: tr.add(counter, packed(LIVE_NAMES, {"buried": 1})))
    assert place.verify(mend=True).sound
    assert place.verify().findings == ()
    assert place.queue.peek(place.db, id_).state == "r"
    taken = [task.data for task in iter(lambda: place.queue.take(place.db, 0, session=place.session), None)]
    assert "new" not in taken


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_moved_task_needs_its_key(place: Place, is_mended: bool) -> None:
    place.queue.repartition(place.db, 1)
    place.queue.kick(place.db, 100)
    moved = place.db.get_range(place.shared.all_moved.start, place.shared.all_moved.stop)
    assert len(moved) == PARTITIONS - 1
    place.db.clear(moved[0].key)
    [found] = place.verify(mend=is_mended).findings
    assert (found.flaw, found.mended) == (Flaw.STATE, is_mended)
    assert place.db[moved[0].key] == (moved[0].value if is_mended else None)
