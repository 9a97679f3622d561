"""Groups, their members and their counts are verified, and mended."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Flaw, Group, Task, TaskQueue, transactional, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import Suspect
from fdbqueue.operate.verify.root import compare_members
from fdbqueue.tasks.group_members import MemberRows
from fdbqueue.tasks.group_settling import Settling, counts_added, members_added
from fdbqueue.tasks.stored.records import id_bytes
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

    def lose(self, number: int, damage: bytes | None) -> None:
        """Remove or damage the record of a task, and mend all that follows."""
        key = self.task_key(number)
        transactional(lambda tr: tr.clear(key) if damage is None else tr.set(key, damage))(self.db)
        for _ in range(3):  # one mending may show another contradiction
            self.verify(mend=True)
        assert self.verify().findings == ()

    def settle(self) -> None:
        while transactional(Settling(self.db, self.keys).tidy)(self.db):
            pass


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
    place.settle()
    assert place.closed.wait(place.db, 60).ended is not None


def test_a_member_that_is_set_aside_is_counted_off_by_mending(place: Place) -> None:
    key = place.task_key(0)
    place.queue.bury(place.db, place.tasks[0])
    transactional(lambda tr: tr.set(key, b"damage"))(place.db)
    for _ in range(3):
        place.verify(mend=True)
    assert place.verify().findings == ()
    assert place.group.progress(place.db).left == 1


def test_a_group_ends_when_a_mending_counts_its_last_member(place: Place) -> None:
    """No other end of a member would tell its sweeps."""
    settling, doubt = Settling(place.db, place.keys), place.keys.doubt(place.of)
    place.queue.delete(place.db, place.tasks[1])
    place.group.close(place.db)
    for _ in range(3):  # a doubt goes when its counts stay the same
        while transactional(settling.tidy)(place.db):
            pass
    assert place.db[doubt] is None
    place.db.clear(place.task_key(0))
    place.verify(mend=True)
    place.settle()
    assert place.group.progress(place.db).ended is not None


@pytest.fixture(params=[True, False], ids=["waits", "waits-not"])
def half_buried(place: Place, request: pytest.FixtureRequest) -> Place:
    """Its group has two members, of which the first is buried; it waits for buried members or not."""
    group = Group.create(place.db, wait_for_buried=request.param, root=place.root)
    tasks = group.put_many(place.db, place.queue, [1, 2])
    place.queue.bury(place.db, tasks[0])
    return replace(place, group=group, tasks=tasks)


@pytest.mark.parametrize("damage", [None, b"damage"], ids=["gone", "damaged"])
def test_a_lost_buried_member_counts_once_as_failed(half_buried: Place, damage: bytes | None) -> None:
    at = half_buried
    at.lose(0, damage)
    at.group.close(at.db)
    at.settle()
    told = at.group.progress(at.db)
    assert (told.left, told.failed, told.buried, told.ended) == (1, 1, 0, None)
    while task := at.queue.take(at.db, 0):
        at.queue.ack(at.db, task)
    at.settle()
    told = at.group.progress(at.db)
    assert (told.total, told.done, told.failed) == (2, 1, 1)
    assert told.ended is not None
    assert at.verify().findings == ()


def test_a_lost_member_leaves_the_count_of_a_buried_one(half_buried: Place) -> None:
    at = half_buried
    at.lose(1, None)
    told = at.group.progress(at.db)
    assert (told.failed, told.left) == ((1, 1) if told.waits_for_buried else (2, 0))
    assert told.buried == 1
    at.queue.kick(at.db)
    while task := at.queue.take(at.db, 0):
        at.queue.ack(at.db, task)
    told = at.group.progress(at.db)
    assert (told.total, told.done, told.failed, told.buried) == (2, 1, 1, 0)
    assert at.verify().findings == ()


def test_lost_members_are_told_from_others_in_small_portions(
    half_buried: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COUNTED_ROWS", 1)
    half_buried.tasks += half_buried.group.put_many(half_buried.db, half_buried.queue, range(3))
    for lost in (2, 0):
        half_buried.lose(lost, None)
    told = half_buried.group.progress(half_buried.db)
    assert (told.total, told.failed, told.left, told.buried) == (5, 2, 3, 0)


def test_a_mending_without_time_counts_no_member_off_wrongly(
    half_buried: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = half_buried
    key = at.task_key(0)
    with monkeypatch.context() as hasty:
        hasty.setattr(limits, "COUNTED_ROWS", 1)
        hasty.setattr(limits, "COUNTED_S", 0)
        transactional(lambda tr: tr.clear(key))(at.db)
        for _ in range(2):
            at.verify(mend=True)
        assert at.group.progress(at.db).left == 1
    for _ in range(2):
        at.verify(mend=True)
    assert (at.group.progress(at.db).left, at.group.progress(at.db).failed) == (1, 1)


def test_members_in_other_partitions_keep_their_counts(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", partitions=4, root=space)
    group = Group.create(db, wait_for_buried=False, root=space)
    at = Place(db, space, queue, group, group, [group.put(db, queue, number) for number in range(12)])
    for task in at.tasks[1:]:
        queue.bury(db, task)
    queue.repartition(db, 1)
    queue.kick(db, 12)
    keys = queue._shape.keys
    assert any(at.id(number)[1] for number in range(1, 12) if db.get(keys.task(at.id(number))) is not None)
    at.lose(0, None)
    told = group.progress(db)
    assert (told.total, told.failed, told.left, told.buried) == (12, 12, 0, 0)


@pytest.mark.parametrize("half_buried", [False], indirect=True, ids=["waits-not"])
def test_two_members_are_not_counted_off_at_once(half_buried: Place) -> None:
    """Each would take the one burial that counts for its own."""
    at = half_buried
    checks = MemberRows(at.queue._shape, "")
    ends = [partial(checks._count_off, at.shared.member(at.of, at.id(number)), at.of) for number in range(2)]
    for number in range(2):
        at.db.clear(at.task_key(number))
    found = [Suspect(Flaw.STRAY, b"", "", "", end) for end in ends]
    require_one_mending(at.db, *found)


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
    place.settle()
    assert place.group.wait(place.db, 60).failed == 2
