"""Groups: members are counted, `then` starts when all have ended, and each end counts once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Group, GroupProgress, Task, TaskQueue, group, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import GroupNotFound, GroupTimeout, InvalidArgument
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import engine_errors
from fdbqueue.tasks.group_settling import Settling
from tests.tasks.partitions import MakeParted, PartitionsBench
from tests.tasks.support import SetLimits
from tests.tasks.test_groups_sweeps import made, settle


@pytest.fixture(params=[1, 3], ids=["whole", "parted"])
def b(request: pytest.FixtureRequest, parted: MakeParted) -> Iterator[PartitionsBench]:
    made = parted("fifottl", partitions=request.param, ttr=60)
    yield made
    assert fdbqueue.verify(made.db, root=made.root).findings == ()


@pytest.fixture
def then(b: PartitionsBench) -> TaskQueue:
    return TaskQueue.create(b.db, "then", "fifottl", root=b.root)


def test_a_sweep_that_does_not_commit_looks_at_its_groups_again(
    b: PartitionsBench, then: TaskQueue, set_limits: SetLimits
) -> None:
    set_limits(GROUPS_SWEPT_MAX=1)
    for _ in range(3):
        made(b, then).close(b.db)
    settling = Settling(b.db, RootKeys(b.root))
    assert settling.tidy(b.db.create_transaction())  # its commit is lost
    while transactional(settling.tidy)(b.db):
        pass
    assert started(then, b) == ["then"] * 3


def counts(b: PartitionsBench, of: Group) -> tuple[int, int, int]:
    found = of.progress(b.db)
    assert found.done + found.failed + found.left == found.total
    return found.done, found.failed, found.left


def take(b: PartitionsBench) -> Task:
    found = b.queue.take(b.db, 0)
    assert found is not None
    return found


def started(then: TaskQueue, b: PartitionsBench) -> list[Any]:
    return [task.data for task in then.tasks(b.db, "r", 100)]


def test_a_transaction_that_fails_leaves_no_group(b: PartitionsBench, then: TaskQueue) -> None:
    tr = b.db.create_transaction()
    with group(tr, then=(then, "x"), root=b.root) as g:
        g.put(b.queue, 1)
    tr.cancel()
    with pytest.raises(GroupNotFound):
        g.group.progress(b.db)
    assert then.statistics(b.db)["tasks"]["total"] == 0


@pytest.mark.commits_by_hand
def test_statistics_name_cancelled_tasks_until_a_sweep(b: PartitionsBench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=2)
    of, other = made(b), made(b)
    other.put_many(b.db, b.queue, list("xy"))
    of.put_many(b.db, b.queue, range(5))
    b.queue.put(b.db, "alone")

    def told() -> tuple[int, int]:
        tasks = b.queue.statistics(b.db)["tasks"]
        return tasks["total"], tasks["cancelled"]

    assert told() == (8, 0)
    of.cancel(b.db)
    assert told() == (8, 5)
    settling = Settling(b.db, RootKeys(b.root))
    seen = {told()}
    while transactional(settling.tidy)(b.db):
        seen.add(told())
    assert seen >= {(8, 5), (6, 3), (4, 1), (3, 0)}
    other.cancel(b.db)
    assert told() == (3, 2)
    b.queue.truncate(b.db)
    assert told() == (0, 0)


def test_a_dropped_queue_of_then_holds_no_group(b: PartitionsBench, then: TaskQueue) -> None:
    of = made(b, then)
    then.drop(b.db)
    of.close(b.db)
    settle(b)
    assert of.wait(b.db, 0).ended is not None


def test_explain_names_the_group_or_the_task_before(b: PartitionsBench, then: TaskQueue) -> None:
    of = made(b, then)
    of.put_many(b.db, b.queue, [1, 2])
    b.queue.bury(b.db, take(b))
    task_id = of.progress(b.db).then
    assert task_id is not None
    [reason] = then.explain(b.db, task_id).reasons
    assert reason.why == fdbqueue.Why.WAITING
    assert reason.text == (
        f"It waits for the group {of.id}: 2 members of it are left, 1 of them buried. The group is open."
    )
    assert reason.cure == f"fdbqueue group close {of.id}"
    child = b.queue.put(b.db, "child", after=(parent := b.queue.put(b.db, "parent")))
    [reason] = b.queue.explain(b.db, child).reasons
    assert reason.text == f"It waits for the end of the task {parent.id}."


def test_several_tasks_may_wait_for_one(b: PartitionsBench) -> None:
    of = made(b)
    parent = of.put(b.db, b.queue, "parent")
    for number in range(limits.GROUPS_OF_TASK_MAX - 1):
        b.queue.put(b.db, number, after=parent)
    tr = b.db.create_transaction()
    with pytest.raises(InvalidArgument):
        b.queue.put(tr, "one too many", after=parent)
    tr.commit().wait()  # a refused put has written nothing
    assert b.queue.statistics(b.db)["tasks"]["total"] == limits.GROUPS_OF_TASK_MAX
    of.close(b.db)
    b.queue.ack(b.db, take(b))
    settle(b)
    assert b.queue.statistics(b.db)["tasks"]["ready"] == limits.GROUPS_OF_TASK_MAX - 1
    assert of.wait(b.db, 0).done == 1


def test_a_put_may_sweep_the_task_that_it_comes_after(parted: MakeParted) -> None:
    """The put makes room, and both of the tasks before it are due: one ends, and the other is ready."""
    b = parted("limfifottl", capacity=2)
    parent = b.queue.put(b.db, "parent", delay=1)
    b.queue.put(b.db, "expires", ttl=1)
    b.clock.advance(1)
    b.queue.put(b.db, "child", after=parent)
    assert b.queue.statistics(b.db)["tasks"]["ready"] == 1
    assert fdbqueue.verify(b.db, root=b.root).findings == ()


def test_ends_of_members_do_not_conflict(b: PartitionsBench, then: TaskQueue) -> None:
    of = made(b, then)
    of.put_many(b.db, b.queue, range(4))
    of.close(b.db)
    held = b.queue.take_many(b.db, 4)
    open_ones = [b.db.create_transaction() for _ in held]
    for tr, task in zip(open_ones, held, strict=True):
        b.queue.ack(tr, task)
    for tr in open_ones:
        tr.commit().wait()
    settle(b)
    assert started(then, b) == ["then"]


def test_puts_of_members_do_not_conflict(b: PartitionsBench) -> None:
    of = made(b)
    open_ones = [b.db.create_transaction() for _ in range(3)]
    for tr in open_ones:
        of.put(tr, b.queue, 1)
    for tr in open_ones:
        tr.commit().wait()
    assert counts(b, of) == (0, 0, 3)


@pytest.mark.commits_by_hand
def test_doubts_of_more_groups_than_are_remembered_end(b: PartitionsBench, set_limits: SetLimits) -> None:
    """Each pass clears as many as it remembers; the others have their room in the next one."""
    set_limits(GROUPS_REMEMBERED_MAX=2, GROUPS_SWEPT_MAX=2)
    for number in range(9):
        made(b).put(b.db, b.queue, number)
        b.queue.ack(b.db, take(b))
    settling, doubts = Settling(b.db, RootKeys(b.root)), RootKeys(b.root).doubts
    in_doubt = []
    for _ in range(6):
        while transactional(settling.tidy)(b.db):
            pass
        in_doubt.append(len(list(b.db.get_range(doubts.start, doubts.stop))))
    assert in_doubt == [9, 7, 5, 3, 1, 0]


REFUSED: dict[str, Callable[[PartitionsBench, Group], object]] = {
    "a text that is no id": lambda b, _: b.queue.put(b.db, 1, group="x"),
    "a task as a group": lambda b, _: b.queue.put(b.db, 1, group=b.queue.put(b.db, 1)),
    "a unique member": lambda b, of: of.put(b.db, b.queue, 1, unique=1),
    "a unique task after another": lambda b, _: b.queue.put(b.db, 1, unique=1, after=b.queue.put(b.db, 1)),
    "a delay after another": lambda b, _: b.queue.put(b.db, 1, delay=1, after=b.queue.put(b.db, 1)),
    "several tasks after one": lambda b, _: b.queue.put_many(b.db, [1], after=b.queue.put(b.db, 1)),
    "several tasks after a group": lambda b, _: b.queue.put_many(b.db, [1], waits=bytes(16)),
    "a queue under another root": lambda b, _: Group(bytes(16).hex()).put(b.db, b.queue, 1),
    "no tuple": lambda b, _: Group.create(b.db, then=b.queue, root=b.root),  # type: ignore[arg-type]
    "a unique task of then": lambda b, _: Group.create(b.db, then=(b.queue, 1, {"unique": 1}), root=b.root),
    "a database for a block": lambda b, _: group(b.db, root=b.root).__enter__(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_arguments_are_refused(b: PartitionsBench, what: str) -> None:
    of = made(b)
    with pytest.raises(InvalidArgument):
        REFUSED[what](b, of)
    assert counts(b, of) == (0, 0, 0)


def test_a_group_that_does_not_exist_is_refused(b: PartitionsBench) -> None:
    missing = Group(bytes(16).hex(), root=b.root)
    for call in (missing.progress, missing.close, missing.cancel, lambda db: missing.put(db, b.queue, 1)):
        with pytest.raises(GroupNotFound):
            call(b.db)
    with pytest.raises(GroupNotFound):
        Group.open(b.db, missing.id, root=b.root)
    assert b.queue.statistics(b.db)["tasks"]["total"] == 0


def test_a_wait_that_is_too_short_tells_how_many_are_left(b: PartitionsBench) -> None:
    of = made(b)
    of.put_many(b.db, b.queue, [1, 2])
    with pytest.raises(GroupTimeout) as caught:
        of.wait(b.db, 0)
    assert caught.value.left == 2


def test_a_change_of_the_progress_can_be_waited_for(b: PartitionsBench) -> None:
    of = made(b)
    of.put_many(b.db, b.queue, [1, 2])
    seen = of.progress(b.db)
    assert of.wait_for_progress(b.db, seen, 0) is None
    b.queue.ack(b.db, take(b))
    found = of.wait_for_progress(b.db, seen, 0)
    assert isinstance(found, GroupProgress)
    assert (found.done, found.left) == (1, 1)


@pytest.mark.parametrize("meanwhile", ["truncate", "close", "cancel"])
def test_a_put_of_a_member_conflicts_with_the_end_of_others(b: PartitionsBench, meanwhile: str) -> None:
    of = made(b)
    of.put(b.db, b.queue, 1)
    tr = b.db.create_transaction()
    of.put(tr, b.queue, 2)
    getattr(b.queue if meanwhile == "truncate" else of, meanwhile)(b.db)
    with pytest.raises(engine_errors()):
        tr.commit().wait()
