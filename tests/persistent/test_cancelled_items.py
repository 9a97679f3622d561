"""Items of a persistent queue are tasks: one may be cancelled by its id, or put off."""

from typing import Any

import pytest

from fdbqueue import Database, PersistentQueue, TaskQueue
from tests.persistent.support import Running


@pytest.fixture
def queue(db: Database, space: Any) -> PersistentQueue:
    made = PersistentQueue(db, "items", root=space)
    for item in "ab":
        made.put(item)
    return made


def cancel_first(db: Database, space: Any, state: str) -> None:
    tasks = TaskQueue.open(db, "items", root=space)
    tasks.cancel(db, tasks.tasks(db, state, 1)[0])


def test_a_cancelled_item_that_waits_is_gone(db: Database, space: Any, queue: PersistentQueue) -> None:
    cancel_first(db, space, "r")
    assert (queue.qsize(), queue.get()) == (1, "b")
    queue.close()


def test_a_cancelled_item_that_was_fetched_can_be_acked(
    db: Database, space: Any, queue: PersistentQueue
) -> None:
    item = queue.get()
    cancel_first(db, space, "t")
    assert queue.unacked == [item]
    queue.ack(item)
    assert queue.get() == "b"
    queue.close()


def test_a_cancelled_item_does_not_come_back(db: Database, space: Any, queue: PersistentQueue) -> None:
    """The end of its proxy ends it."""
    proxy = queue.connect()
    proxy.get()
    cancel_first(db, space, "t")
    proxy.close()
    assert (queue.qsize(), queue.get()) == (1, "b")
    queue.task_done()
    queue.join()
    queue.close()


def test_a_join_waits_for_an_item_that_is_put_off(db: Database, space: Any, queue: PersistentQueue) -> None:
    tasks = TaskQueue.open(db, "items", root=space)
    for task in tasks.take_many(db, 2):
        tasks.defer(db, task, delay=60)
    joined = Running(queue.join)
    assert joined.is_waiting
    for task in tasks.tasks(db, "~", 2):
        tasks.cancel(db, task)
    joined.result()
    queue.close()
