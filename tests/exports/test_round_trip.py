"""A queue that is exported and imported is the same queue: its contents, its order, its statistics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Group, Limit, Queue, Schedule, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.errors import ExportRefused, ImportUnfinished, QueueExists
from fdbqueue.core.registry import IMPORTING, Registry
from fdbqueue.operate.exports import exporting
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import Section, TaskLine
from fdbqueue.tasks.schedules import list_schedules
from tests.exports.support import (
    KINDS,
    elements,
    export,
    filled,
    imported,
    plain,
    set_limits,
    stored,
    target,
    told,
)
from tests.partitions.support import PARTITIONS, bury_in
from tests.tasks.support import StillClock

__all__ = ["target"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_comes_back_with_all_of_its_contents(
    db: Database, space: Subspace, target: Database, tmp_path: Path, kind: str
) -> None:
    """Leases are ready tasks; the cancelled one has ended. A second export tells the same."""
    set_limits(db, space)
    queue = filled(db, kind, space)
    counts = export(db, tmp_path / "first", root=space)
    assert (counts[kind]["leases"], counts[kind]["cancelled"]) == (2, 1)
    imported(target, tmp_path / "first")
    found = verify(target)
    assert (found.sound, found.uncompared) == (True, ())
    export(target, tmp_path / "second")
    assert told(tmp_path / "second") == told(tmp_path / "first")
    there, before = TaskQueue.open(target, kind).statistics(target), queue.statistics(db)
    assert there["calls"] == before["calls"]
    assert there["tasks"]["taken"] == 0
    assert there["tasks"]["total"] == before["tasks"]["total"] - 1


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_same_keys_and_order(tmp_path: Path, kind: str) -> None:
    """Without leases, each key of the queue is the same, and so is the order of takes. On a clock that stands
    still during the takes, as tokens of a limit come with time.
    """
    clock = StillClock()
    with (
        fdbqueue.open("memory:", runtime=clock) as db,
        fdbqueue.open("memory:", runtime=clock) as target,
    ):
        set_limits(db)
        queue = filled(db, kind, leases=False)
        export(db, tmp_path / "export")
        imported(target, tmp_path / "export")
        assert stored(target, kind) == stored(db, kind)
        queue.resume(db)
        there = TaskQueue.open(target, kind)
        there.resume(target)
        clock.advance(10)  # the limits have all of their tokens again
        if kind != "bag" and "partitions" not in KINDS[kind]:  # those have no order of the whole queue
            assert taken(target, there) == taken(db, queue)
        else:
            assert sorted(taken(target, there)) == sorted(taken(db, queue))


def taken(db: Database, queue: TaskQueue) -> list[int]:
    numbers = []
    while (task := queue.take(db, 0)) is not None:
        numbers.append(task.data["number"])
        queue.ack(db, task)
    return numbers


def test_a_plain_queue_comes_back_in_order(
    db: Database, space: Subspace, target: Database, tmp_path: Path
) -> None:
    """An item that lies ready for a caller is one of the queue."""
    queue = plain(db, space, partitions=1)
    before = list(queue.items(db, 100))
    assert export(db, tmp_path / "export", root=space, in_use=True) == {"plain": {"items": 12}}
    imported(target, tmp_path / "export")
    there = Queue.named(target, "plain", create=False)
    assert list(there.items(target, 100)) == before
    assert there.size(target) == 12
    assert verify(target).sound
    assert stored(target, "plain") == stored(db, "plain", space)


@pytest.mark.parametrize("batch", [1, limits.IMPORT_BATCH_ITEMS], ids=["two batches", "one batch"])
def test_an_item_that_is_given_back_during_an_export_comes_once(
    target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """The export reads it in the line, and later among the items."""
    monkeypatch.setattr(limits, "IMPORT_BATCH_ITEMS", batch)
    with fdbqueue.open("memory:") as db:
        queue = Queue.named(db, "plain")
        queue.enqueue_many(db, [0, 1])
        holder = queue.holder(db)
        assert holder.hold(1) == [0]
        steps = Export(db, Registry(), in_use=True).run(tmp_path / "export")
        next(step for step in steps if "lying" in step.counts)
        assert holder.settle(shown=0)
        list(steps)
    imported(target, tmp_path / "export")
    there = Queue.named(target, "plain", create=False)
    assert (list(there.items(target, 9)), there.size(target)) == ([0, 1], 2)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("size", [1, limits.NOTICE_BYTES_MAX // 2], ids=["in", "beside"])
def test_all_items_that_lie_ready_for_a_call_come_back(
    target: Database, tmp_path: Path, partitions: int, size: int
) -> None:
    """They are in the notice to the call, or beside it."""
    values = [number * size for number in "abcdef"]
    with fdbqueue.open("memory:") as db:
        queue = Queue.named(db, "plain", partitions=partitions)
        for value in values:
            queue.enqueue(db, value)
        assert len(queue.holder(db).hold(3)) == 3
        assert export(db, tmp_path / "export", in_use=True) == {"plain": {"items": 6, "lying": 3}}
    imported(target, tmp_path / "export")
    there = Queue.named(target, "plain", create=False)
    assert verify(target).sound
    assert there.size(target) == 6
    assert sorted(str(there.dequeue(target)) for _ in values) == values


def test_a_task_that_ends_during_an_export_comes_as_one(target: Database, tmp_path: Path) -> None:
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "jobs", retain_s=1_000)
        queue.put_many(db, ["ends", "stays"])
        steps = Export(db, Registry(), in_use=True).run(tmp_path / "export")
        next(step for step in steps if step.counts.get("tasks"))
        task = queue.take(db, 0)
        queue.ack(db, task)
        list(steps)
    imported(target, tmp_path / "export")
    there = TaskQueue.open(target, "jobs")
    assert [task.data for task in there.tasks(target, "r", 9)] == ["ends", "stays"]
    assert not there.ended_tasks(target, 9)


@pytest.mark.parametrize("read", [1, 2], ids=["unread", "read"])
def test_a_task_that_moves_during_an_export_comes_once(
    target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """Its kick takes it from the last partition into the first one, which is read before."""
    monkeypatch.setattr(limits, "IMPORT_BATCH_ITEMS", 1)
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "jobs", "utubettl", partitions=PARTITIONS)
        for partition in (0, PARTITIONS - 1):
            bury_in(queue, db, partition, data=partition)
        while not queue.repartition(db, 1).is_finished:
            pass
        steps = Export(db, Registry(), in_use=True).run(tmp_path / "export")
        next(step for step in steps if step.counts.get("tasks") == read)
        assert queue.kick(db, 2) == 2
        list(steps)
    imported(target, tmp_path / "export")
    found = TaskQueue.open(target, "jobs").statistics(target)["tasks"]
    assert found["total"] == 2
    assert verify(target).sound


@pytest.mark.parametrize("batch", [1, 100])
def test_a_unique_key_put_again_during_an_export_has_one_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(limits, "EXPORT_BATCH_ROWS", 1)
    monkeypatch.setattr(limits, "IMPORT_BATCH_ITEMS", batch)
    clock, path = StillClock(), tmp_path / "export"
    with fdbqueue.open("memory:", runtime=clock) as db, fdbqueue.open("memory:", runtime=clock) as target:
        queue = TaskQueue.create(db, "jobs")
        queue.put(db, 1, unique="a", scope=10)
        steps = Export(db, Registry(), in_use=True).run(path)
        next(step for step in steps if b'"window"' in path.read_bytes())
        clock.advance(11)
        later = queue.put(db, 2, unique="a", scope=60)
        list(steps)
        imported(target, path)
        assert verify(target).findings == ()
        assert TaskQueue.open(target, "jobs").put(target, 3, unique="a").id == later.id


def test_elements_come_back_without_their_locks(
    db: Database, space: Subspace, target: Database, tmp_path: Path
) -> None:
    queue = elements(db, space)
    assert export(db, tmp_path / "export", root=space, in_use=True) == {"elements": {"elements": 5}}
    imported(target, tmp_path / "export")
    first = next(iter(queue.names(db)))
    queue.unlock(db, first)
    assert stored(target, "elements") == stored(db, "elements", space)
    assert verify(target).sound


def test_values_that_were_set_aside_come_back(target: Database, tmp_path: Path) -> None:
    with fdbqueue.open("memory:") as db:
        queue = Queue.named(db, "plain")
        queue.enqueue(db, "sound")
        (item,) = [key for key in stored(db, "plain") if key.startswith(b"\x14")]
        registry = Registry()
        db.set(registry.contents(registry.find(db, "plain")).key() + item, b"\x00not JSON")
        assert queue.dequeue(db) is None
        before = list(queue.aside(db, 9))
        assert export(db, tmp_path / "export", in_use=True) == {"plain": {"set_aside": 1}}
        imported(target, tmp_path / "export")
        there = Queue.named(target, "plain", create=False)
        assert list(there.aside(target, 9)) == before
        assert there.unreadable(target) == 1
        assert verify(target).sound


def test_a_queue_that_was_repartitioned_comes_back(target: Database, tmp_path: Path) -> None:
    """Tasks lie in another partition than that of their put, and are found there."""
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "moved", "utubettl")
        ids = [queue.put(db, number, key=number % 5, delay=0.001).id for number in range(20)]
        while not queue.repartition(db, 4).is_finished:
            pass
        while queue.statistics(db)["tasks"]["ready"] < 20:
            queue.kick(db)
            queue.statistics(db)
        queue.pause(db)
        export(db, tmp_path / "export")
        imported(target, tmp_path / "export")
        there = TaskQueue.open(target, "moved")
        assert [there.peek(target, id_).data for id_ in ids] == list(range(20))
        assert stored(target, "moved").keys() - stored(db, "moved").keys() == set()
        assert verify(target).sound


def test_a_batch_that_is_full_by_its_bytes_is_not_the_last(
    target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXPORT_BATCH_BYTES", 50)
    TaskQueue.create(target, "jobs").put_many(target, range(9))
    Queue.named(target, "plain").enqueue_many(target, ["x" * 20] * 9)
    counts = export(target, tmp_path / "export", in_use=True)
    assert counts == {"jobs": {"tasks": 9}, "plain": {"items": 9}}


def test_a_batch_of_moved_tasks_is_full_by_its_bytes(
    target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are in the list of moved tasks, with one byte each: their payloads count."""
    monkeypatch.setattr(limits, "EXPORT_BATCH_BYTES", 2_500)
    batches: list[int] = []
    monkeypatch.setattr(Section, "batch", counting(Section.batch, batches))
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "moved", partitions=2)
        for number in range(8):  # in turn: each second one is to move
            queue.bury(db, queue.put(db, f"{number}" * 1_000))
        queue.repartition(db, 1)
        queue.kick(db, 8)
        while not queue.repartition(db, 1).is_finished:  # its end would change the definition of the export
            pass
        export(db, tmp_path / "export", in_use=True)
    assert sum(batches) == 8 + 4
    assert max(batches) <= 2
    imported(target, tmp_path / "export")
    assert TaskQueue.open(target, "moved").statistics(target)["tasks"]["ready"] == 8


def counting(batch: Callable[..., Any], batches: list[int]) -> Callable[..., Any]:
    """`batch`, which notes the number of tasks of each batch."""

    def noted(*given: Any) -> Any:
        found = batch(*given)
        batches.append(sum(isinstance(line, TaskLine) for line in found[0].lines))
        return found

    return noted


# Rules.


def test_a_queue_in_use_is_exported_only_if_asked(tmp_path: Path, target: Database) -> None:
    TaskQueue.create(target, "busy").put(target, 1)
    Queue.named(target, "plain")
    with pytest.raises(ExportRefused, match="not paused"):
        export(target, tmp_path / "1", "busy")
    with pytest.raises(ExportRefused, match="no pause"):
        export(target, tmp_path / "2", "plain")
    assert export(target, tmp_path / "3", in_use=True) == {"busy": {"tasks": 1}, "plain": {}}


def test_a_refused_queue_costs_no_export_of_the_others(tmp_path: Path, target: Database) -> None:
    filled(target, "bag")
    TaskQueue.create(target, "in use").put(target, 1)
    steps = Export(target, Registry()).run(tmp_path / "file")
    with pytest.raises(ExportRefused, match="in use"):
        next(steps)
    assert not (tmp_path / "file").exists()


def test_an_export_of_a_queue_resumed_in_between_is_refused(tmp_path: Path, target: Database) -> None:
    """A task that was acked in between lies in the file: it would run again."""
    queue = TaskQueue.create(target, "jobs")
    queue.put(target, 1)
    queue.pause(target)
    steps = Export(target, Registry(), ["jobs"]).run(tmp_path / "1")
    next(step for step in steps if step.counts)
    steps.close()
    queue.resume(target)
    task = queue.take(target, 0)
    queue.ack(target, task)
    queue.pause(target)
    with pytest.raises(ExportRefused, match="taken"):
        export(target, tmp_path / "1", "jobs")


def test_an_export_ends_once_its_queue_is_resumed(tmp_path: Path, target: Database) -> None:
    queue = TaskQueue.create(target, "jobs")
    queue.put(target, 1)
    queue.pause(target)
    steps = Export(target, Registry()).run(tmp_path / "1")
    next(step for step in steps if step.counts)
    queue.resume(target)
    with pytest.raises(ExportRefused, match="not paused"):
        next(steps)
    queue.pause(target)
    assert export(target, tmp_path / "1") == {"jobs": {"tasks": 1}}


def test_members_of_groups_are_left_out_only_if_asked(tmp_path: Path, target: Database) -> None:
    """The task that waited for the group is buried: no other call would ever start it."""
    queue = TaskQueue.create(target, "jobs")
    group = Group.create(target, then=(queue, "last"))
    queue.put(target, "member", group=group)
    queue.pause(target)
    with pytest.raises(ExportRefused, match="group"):
        export(target, tmp_path / "1")
    export(target, tmp_path / "1", leave_out=True)
    with fdbqueue.open("memory:") as other:
        imported(other, tmp_path / "1")
        there = TaskQueue.open(other, "jobs")
        assert [task.data for task in there.tasks(other, "!", 9)] == ["last"]
        assert [task.data for task in there.tasks(other, "r", 9)] == ["member"]
        assert verify(other).sound


def test_schedules_are_left_out_only_if_asked(tmp_path: Path, target: Database) -> None:
    TaskQueue.create(target, "jobs").pause(target)
    Schedule.create(target, "nightly", every=3_600, queue="jobs")
    with pytest.raises(ExportRefused, match="nightly"):
        export(target, tmp_path / "1")
    assert export(target, tmp_path / "2", leave_out=True) == {"jobs": {}}


def test_a_schedule_that_comes_after_the_first_look_is_refused(tmp_path: Path, target: Database) -> None:
    for name in ("first", "second"):
        TaskQueue.create(target, name).pause(target)
    steps = Export(target, Registry()).run(tmp_path / "export")
    assert next(steps).name == "first"
    Schedule.create(target, "nightly", every=3_600, queue="second")
    with pytest.raises(ExportRefused, match="nightly"):
        list(steps)


def test_the_first_look_lists_the_schedules_once_for_all_queues(
    tmp_path: Path, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second", "third"):
        TaskQueue.create(target, name).pause(target)
    lists = Mock(side_effect=list_schedules)
    monkeypatch.setattr(exporting, "list_schedules", lists)
    export(target, tmp_path / "export")
    assert lists.call_count == 1 + 3


def test_a_temporary_queue_is_passed_over(tmp_path: Path, target: Database) -> None:
    TaskQueue.create(target, "mine", temporary=True)
    assert export(target, tmp_path / "1", in_use=True) == {}
    with pytest.raises(ExportRefused, match="temporary"):
        export(target, tmp_path / "2", "mine", in_use=True)


def test_limits_come_along_and_leave_those_that_exist(tmp_path: Path, target: Database) -> None:
    Limit.set(target, "slots", slots=99)
    with fdbqueue.open("memory:") as db:
        set_limits(db)
        filled(db, "fifo")
        filled(db, "fifottl")
        export(db, tmp_path / "export")
        imported(target, tmp_path / "export")
        assert Limit.open(target, "slots").slots == 99
        there, before = (Limit.open(one, "starts") for one in (target, db))
        assert (there.rate, there.per, there.burst, there.per_key) == (50, 1.5, 7, True)
        assert before.rate == there.rate


def test_a_limit_of_slots_and_a_rate_comes_along(tmp_path: Path, target: Database) -> None:
    with fdbqueue.open("memory:") as db:
        Limit.set(db, "host", slots=3, rate=50, per=1.5, burst=7, per_key=True)
        TaskQueue.create(db, "pages", task_limits=["host"]).pause(db)
        export(db, tmp_path / "export")
        imported(target, tmp_path / "export")
        assert Limit.open(target, "host") == Limit.open(db, "host")


def test_an_import_makes_the_limits_of_its_queues_only(tmp_path: Path, target: Database) -> None:
    with fdbqueue.open("memory:") as db:
        set_limits(db)
        Limit.set(db, "other", slots=1)
        for name, of_all, named in (("first", ["other"], []), ("second", ["slots"], ["starts"])):
            TaskQueue.create(db, name, limits=of_all, task_limits=named).pause(db)
        export(db, tmp_path / "export")
    imported(target, tmp_path / "export", "second")
    assert [limit.name for limit in Limit.list(target)] == ["slots", "starts"]


def test_a_queue_of_the_same_name_is_refused(tmp_path: Path, target: Database) -> None:
    queue = TaskQueue.create(target, "jobs")
    queue.put(target, 1)
    queue.pause(target)
    export(target, tmp_path / "export")
    with pytest.raises(QueueExists):
        imported(target, tmp_path / "export")
    assert queue.statistics(target)["tasks"]["ready"] == 1


def test_a_queue_of_another_import_is_refused(tmp_path: Path, target: Database) -> None:
    queue = TaskQueue.create(target, "jobs")
    queue.pause(target)
    export(target, tmp_path / "1")
    export(target, tmp_path / "2")
    with fdbqueue.open("memory:") as other:
        imported(other, tmp_path / "1")
        assert imported(other, tmp_path / "1") == {"jobs": {}}
        with pytest.raises(QueueExists):
            imported(other, tmp_path / "2")


def test_a_queue_cannot_be_used_before_it_is_whole(tmp_path: Path, target: Database) -> None:
    Registry().create(target, "jobs", IMPORTING, {})
    for call in (lambda: TaskQueue.open(target, "jobs"), lambda: Queue.named(target, "jobs")):
        with pytest.raises(ImportUnfinished):
            call()
    with pytest.raises(ExportRefused, match="unfinished"):
        export(target, tmp_path / "1", "jobs", in_use=True)
    assert export(target, tmp_path / "2", in_use=True) == {}
    assert verify(target).sound


def test_an_import_continues_the_index(tmp_path: Path, target: Database) -> None:
    """A task that is put after the import stands behind all imported ones."""
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "jobs")
        queue.put_many(db, list(range(5)))
        queue.pause(db)
        export(db, tmp_path / "export")
        imported(target, tmp_path / "export")
    there = TaskQueue.open(target, "jobs")
    there.put(target, 5)
    assert [task.data for task in there.tasks(target, "r", 9)] == list(range(6))
