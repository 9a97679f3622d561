"""Ended tasks that a queue keeps: by id, by key, for `retain_s`, and bounded in number."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, QueueExists, TaskNotFound, UnsupportedOption
from fdbqueue.tasks.calls import Swept, calls_of
from fdbqueue.tasks.stored.records import ENDED, ENDED_COUNT, TaskKeys
from tests.support import begin, commit_code
from tests.tasks.partitions import PartitionsBench
from tests.tasks.support import Bench, MakeBench

KINDS = ("fifo", "fifottl", "utube", "utubettl", "fair", "bag")


def columns(b: Bench) -> dict[int, int]:
    """The number of keys of ended tasks, by column; the counter as its value."""
    keys = TaskKeys(b.queue.contents)
    found = dict.fromkeys(range(ENDED, ENDED_COUNT + 1), 0)
    for key, value in b.stored():
        if key.startswith(keys.prefix) and key[len(keys.prefix) + 1] in found:
            column = key[len(keys.prefix) + 1]
            found[column] += int.from_bytes(value, "little") if column == ENDED_COUNT else 1
    return found


def outcomes(b: Bench) -> list[tuple[str, str]]:
    return [(task.id, task.outcome) for task in b.queue.ended_tasks(b.db, 100)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_without_retain_s_keeps_nothing(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    b.put("x")
    b.queue.ack(b.db, b.take())
    assert set(columns(b).values()) == {0}
    assert "retain_s" not in b.queue.options
    for look in (lambda: b.queue.ended_tasks(b.db, 1), lambda: b.queue.ended_task(b.db, b.put("y"))):
        with pytest.raises(UnsupportedOption, match="retain_s"):
            look()


def test_ended_tasks_are_kept_for_longer_than_the_clock_runs(bench: MakeBench) -> None:
    """The end of the oldest kept task would lie before the epoch."""
    b = bench(retain_s=limits.SPAN_MAX_S - 1)
    id_ = b.put("x")
    b.queue.ack(b.db, b.take())
    b.sweep()
    assert b.queue.ended_task(b.db, id_).outcome == "acked"
    assert outcomes(b) == [(id_, "acked")]


def test_a_queue_without_task_keys_lists_no_key(bench: MakeBench) -> None:
    with pytest.raises(UnsupportedOption):
        bench(retain_s=60).queue.ended_tasks_of(bench, "a", 10)


@pytest.mark.parametrize("after", ["x", "00", 1, b"00"])
def test_a_place_of_another_listing_is_refused(bench: MakeBench, after: Any) -> None:
    b = bench(retain_s=60)
    with pytest.raises(InvalidArgument):
        b.queue.ended_tasks(b.db, 1, after=after)


def test_looking_at_ended_tasks_conflicts_with_nothing(bench: MakeBench) -> None:
    b = bench(retain_s=1)
    id_ = b.put("x")
    b.queue.ack(b.db, b.take())
    tr = b.db.create_transaction()
    assert [task.id for task in b.queue.ended_tasks(tr, 9)] == [id_]
    assert b.queue.ended_task(tr, id_).id == id_
    tr[b"seen"] = b"one"
    b.put("y")
    b.clock.advance(2)
    b.queue.ack(b.db, b.take())
    b.sweep()
    assert commit_code(tr) == 0


def test_a_sweep_of_ended_tasks_does_not_conflict_with_an_end(bench: MakeBench) -> None:
    b = bench(retain_s=1)
    for number in range(2):
        b.put(number)
    b.queue.ack(b.db, b.take())
    b.clock.advance(2)
    tr = begin(b.db)
    assert Swept(calls_of(b.db, b.queue._shape).parts, b.db.runtime).tidy(tr)
    b.queue.ack(b.db, b.take())
    assert commit_code(tr) == 0


def test_a_partition_stays_while_it_keeps_ended_tasks(parted: Callable[..., PartitionsBench]) -> None:
    b = parted("fifottl", partitions=2, retain_s=60)
    ids = b.put_each(range(4))
    assert {*b.places().values()} == {0, 1}
    b.taken_data()
    for id_ in ids:
        b.queue.ack(b.db, id_, session=b.session)
    b.repartition(1)
    b.settle()
    assert sorted(task.id for task in b.queue.ended_tasks(b.db, 9)) == sorted(ids)
    for _ in range(2):  # the first look comes before the sweep of these tasks
        b.clock.advance(60 + limits.PARTITIONS_LOWERED_EVERY_S)
        b.settle()
    plan = b.plan()
    assert plan.high == 1


def test_a_drop_removes_the_ended_tasks(bench: MakeBench) -> None:
    b = bench(retain_s=60)
    b.put("x")
    b.queue.ack(b.db, b.take())
    b.queue.drop(b.db)
    assert set(columns(b).values()) == {0}


def test_a_damaged_entry_is_left_out(bench: MakeBench) -> None:
    b = bench(retain_s=60)
    id_ = b.put("x")
    b.queue.delete(b.db, id_)
    keys = TaskKeys(b.queue.contents)
    b.db[keys.ended(fdbqueue.tasks.stored.records.id_bytes(id_))] = b"\xff"
    assert outcomes(b) == []
    b.clock.advance(60)
    b.sweep()
    assert set(columns(b).values()) == {0}


def test_a_queue_that_exists_tells_its_retain_s(bench: MakeBench) -> None:
    b = bench(retain_s=60)
    with pytest.raises(QueueExists, match="retain_s = 60; asked for was retain_s = 6"):
        TaskQueue.create(b.db, "bench", retain_s=6)


def test_a_page_of_damaged_entries_is_not_the_last(bench: MakeBench) -> None:
    b = bench(retain_s=60)
    ids = []
    for number in range(3):
        ids.append(b.put(number))
        b.queue.delete(b.db, ids[-1])
        b.clock.advance(1)
    b.db[TaskKeys(b.queue.contents).ended(fdbqueue.tasks.stored.records.id_bytes(ids[-1]))] = b"\xff"
    first = b.queue.ended_tasks(b.db, 1)
    assert first == []
    assert first.next is not None
    assert [task.id for task in b.queue.ended_tasks(b.db, 9, after=first.next)] == ids[1::-1]


def test_an_ended_task_is_kept_for_its_time_only(bench: MakeBench) -> None:
    b = bench("utube", retain_s=60)
    first = b.put("x", key="k")
    b.queue.delete(b.db, first)
    b.clock.advance(30)
    second = b.put("x", key="k")
    b.queue.delete(b.db, second)
    b.clock.advance(30)
    assert [id_ for id_, _ in outcomes(b)] == [second]  # before a sweep, too
    assert [task.id for task in b.queue.ended_tasks_of(b.db, "k", 9)] == [second]
    with pytest.raises(TaskNotFound):
        b.queue.ended_task(b.db, first)
    b.sweep()
    assert set(columns(b).values()) == {1}
    b.clock.advance(30)
    b.sweep()
    assert set(columns(b).values()) == {0}
