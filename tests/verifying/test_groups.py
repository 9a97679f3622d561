"""Groups, their members and their counts are verified, and mended."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Flaw, Group, Task, TaskQueue, transactional, verify
from fdbqueue.database import run
from fdbqueue.groups.settling import Settling
from fdbqueue.partitions.keys import SharedKeys
from fdbqueue.records.groups import counts_added, members_added
from fdbqueue.records.keys import id_bytes
from fdbqueue.root_keys import RootKeys
from fdbqueue.verifying.groups import compare_members
from tests.tasks.support import StillClock
from tests.verifying.corruptions import require_one_mending


@dataclass
class Place:
    """An open group with two members, a closed one without any that has not ended, and a plain task."""

    db: Database
    root: Subspace
    queue: TaskQueue
    group: Group
    closed: Group
    tasks: list[Task]

    @property
    def shared(self) -> SharedKeys:
        return SharedKeys(self.queue.contents)

    @property
    def keys(self) -> RootKeys:
        return RootKeys(self.root)

    @property
    def of(self) -> bytes:
        return bytes.fromhex(self.group.id)

    def id(self, number: int) -> bytes:
        return id_bytes(self.tasks[number].id)

    def task_key(self, number: int) -> bytes:
        shape = self.queue._shape
        places = {one.number for one in self.queue.partitions(self.db)}
        found = [shape.partition(place).keys.task(self.id(number)) for place in places]
        return next(key for key in found if self.db.get(key) is not None)

    def verify(self, mend: bool = False) -> Any:
        return verify(self.db, root=self.root, mend=mend)


@pytest.fixture(params=[1, 4], ids=["whole", "parted"])
def place(db: Database, space: Subspace, request: pytest.FixtureRequest) -> Place:
    queue = TaskQueue.create(db, "q", "fifottl", partitions=request.param, root=space)
    group, closed = Group.create(db, root=space), Group.create(db, root=space)
    tasks = [*group.put_many(db, queue, [1, 2]), queue.put(db, "plain")]
    return Place(db, space, queue, group, closed, tasks)


PLANTS: dict[str, tuple[Callable[[Place, Any], object], list[Flaw]]] = {
    "no entry": (
        lambda at, tr: tr.clear(at.shared.member(at.of, at.id(0))),
        [Flaw.COUNTER, Flaw.STATE],
    ),
    "an entry of another task": (
        lambda at, tr: tr.set(at.shared.member(at.of, at.id(2)), b""),
        [Flaw.COUNTER, Flaw.STRAY],
    ),
    "a counter of the queue": (
        lambda at, tr: tr.add(at.shared.members_of(0, at.of), members_added({"members": 5})),
        [Flaw.COUNTER, Flaw.COUNTER],
    ),
    "a count of buried members without a member": (
        lambda at, tr: tr.add(at.shared.members_of(0, b"x" * 16), members_added({"buried": 1})),
        [Flaw.COUNTER],
    ),
    "counts of the group": (
        lambda at, tr: tr.add(at.keys.group_counts(at.of), counts_added({"done": 1})),
        [Flaw.COUNTER],
    ),
    "a buried member that is none": (
        lambda at, tr: tr.add(at.keys.group_counts(at.of), counts_added({"buried": 1})),
        [Flaw.COUNTER],
    ),
    "a row without a group": (lambda at, tr: tr.set(at.keys.group_counts(b"x" * 16), b""), [Flaw.STRAY]),
    "a time without a group": (lambda at, tr: tr.set(at.keys.group_over(5, b"x" * 16), b""), [Flaw.STRAY]),
    "an unknown row": (lambda at, tr: tr.set(at.keys.group(at.of) + b"\x02x\x00", b""), [Flaw.UNKNOWN]),
    "a damaged group": (lambda at, tr: tr.set(at.keys.group(at.of), b"x"), [Flaw.VALUE]),
}


def test_a_sound_group_has_no_finding(place: Place) -> None:
    assert place.verify().findings == ()
    place.queue.truncate(place.db)
    assert place.verify().findings == ()


def test_a_cancel_that_no_sweep_has_seen_is_no_finding(place: Place) -> None:
    place.closed.cancel(place.db)
    assert place.verify().findings == ()


@pytest.mark.parametrize("what", PLANTS)
def test_a_contradiction_of_groups_is_found_and_mended(place: Place, what: str) -> None:
    plant, flaws = PLANTS[what]
    transactional(lambda tr: plant(place, tr))(place.db)
    found = place.verify().findings
    assert sorted(one.flaw for one in found) == sorted(flaws), found
    if set(flaws) & {Flaw.UNKNOWN, Flaw.VALUE}:
        return
    place.verify(mend=True)
    place.verify(mend=True)  # one mending may show another contradiction
    assert place.verify().findings == ()


def test_a_group_that_no_sweep_finds_is_found_and_mended(place: Place) -> None:
    place.closed.close(place.db)
    transactional(lambda tr: tr.clear(place.keys.doubt(bytes.fromhex(place.closed.id))))(place.db)
    found = place.verify().findings
    if place.closed.progress(place.db).ended is None:  # no keeper was there in between
        assert [one.flaw for one in found] == [Flaw.TIMER]
        place.verify(mend=True)
    while transactional(Settling(place.db, place.keys).tidy)(place.db):
        pass
    assert place.closed.wait(place.db, 60).ended is not None


def test_a_member_that_is_set_aside_is_counted_off_by_mending(place: Place) -> None:
    key = place.task_key(0)
    place.queue.bury(place.db, place.tasks[0])
    transactional(lambda tr: tr.set(key, b"damage"))(place.db)
    for _ in range(3):
        place.verify(mend=True)
    assert place.verify().findings == ()
    assert place.group.progress(place.db).left == 1


def test_two_mendings_of_the_counts_of_a_group_conflict(place: Place) -> None:
    """Each adds the difference that it has seen."""
    transactional(lambda tr: tr.add(place.keys.group_counts(place.of), counts_added({"done": 1})))(place.db)
    found = run(place.db, partial(compare_members, place.keys, place.of, ""))
    assert found is not None
    require_one_mending(place.db, found)
    assert place.verify().findings == ()


def test_a_cancelled_group_that_no_sweep_finds_is_found(db: Database, space: Subspace) -> None:
    keys = RootKeys(space)
    with Database(db.engine, StillClock()) as quiet:  # without a keeper that settles it
        group = Group.create(quiet, root=space)
    id_ = bytes.fromhex(group.id)
    db[keys.group_cancelled(id_)] = b""
    [found] = verify(db, root=space, mend=True).findings
    assert (found.flaw, found.mended) == (Flaw.TIMER, True)
    assert verify(db, root=space).findings == ()


def test_members_of_a_dropped_queue_are_left_to_the_sweep(place: Place) -> None:
    """It counts them off by keys of the queue, which are no findings until then."""
    place.group.close(place.db)
    place.queue.drop(place.db)
    assert place.verify(mend=True).findings == ()
    while transactional(Settling(place.db, place.keys).tidy)(place.db):
        pass
    assert place.group.wait(place.db, 60).failed == 2
