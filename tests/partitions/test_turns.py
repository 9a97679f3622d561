"""Tasks without a task key, and items, go to the partitions in turn. Each process begins at a random one."""

from pathlib import Path

import fdbqueue
from fdbqueue import Database, Queue, TaskQueue, limits, transactional
from tests.support import ManualClock


def test_processes_with_one_put_each_use_many_partitions(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        TaskQueue.create(db, "q", "fifo", partitions=64)
    for number in range(8):
        with fdbqueue.open(url) as db:
            TaskQueue.open(db, "q").put(db, number)
    with fdbqueue.open(url) as db:
        used = [one for one in TaskQueue.open(db, "q").partitions(db) if one.ready]
    assert len(used) > 1


def test_handles_with_one_enqueue_each_use_many_partitions() -> None:
    with fdbqueue.open("memory:") as db:
        for number in range(8):
            queue = Queue.named(db, "q", partitions=64)
            transactional(queue.enqueue)(db, number)
        assert len([one for one in queue.partitions(db) if one.ready]) > 1


def test_processes_with_one_take_each_visit_closed_partitions() -> None:
    """The open partition never becomes empty."""
    clock = ManualClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        queue = Queue.named(db, "q", partitions=4)
        for number in range(4):
            queue.enqueue(db, number)
        queue.repartition(db, 1)
        queue.enqueue_many(db, ["new"] * 100)
        found = []
        for _ in range(2 * 4 * limits.TAKES_PER_VISIT):
            clock.advance(1e-6)
            found.append(queue.dequeue(Database(db.engine, clock)))
        assert set(range(4)) <= set(found)


def test_puts_of_a_process_use_all_partitions_in_turn() -> None:
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "q", "fifo", partitions=4)
        for number in range(8):
            queue.put(db, number)
        assert [one.ready for one in queue.partitions(db)] == [2, 2, 2, 2]
