"""explain() tells of a task key that waits for its old partition, and of calls that wait for all."""

from threading import Thread

from fdb.subspace_impl import Subspace

from fdbqueue import Database, HeldKey, TaskQueue, Why
from tests.partitions.support import key_in, moving_key
from tests.support import wait_until


def test_a_held_task_key_names_its_old_partition(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=2)
    key = moving_key(0, 2, 4)
    queue.put(db, "old", key=key), queue.put(db, "old", key=key)
    queue.repartition(db, 4)
    found = queue.explain(db, queue.put(db, "new", key=key))
    assert found.held == HeldKey(partition=0, tasks=2, before=2, partitions=4)
    assert found.reasons[0].why == Why.KEY_HELD
    assert found.reasons[0].text == (
        "Its key waits for 2 tasks of it in partition 0, since a repartition from 2 to 4."
    )
    other = queue.explain(db, queue.put(db, "other", key=key_in(0, 4)))
    assert other.held is None


def test_a_held_task_key_waits_for_taken_tasks_too(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=2)
    key = moving_key(0, 2, 4)
    queue.put(db, "old", key=key)
    assert queue.take(db, 0) is not None
    queue.repartition(db, 4)
    found = queue.explain(db, queue.put(db, "new", key=key))
    assert found.held == HeldKey(partition=0, tasks=1, before=2, partitions=4)


def test_a_call_that_waits_for_all_partitions_counts(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space, partitions=2)
    id_ = queue.put(db, "later", delay=600).id
    taker = Thread(target=lambda: queue.take(db, 60))
    taker.start()
    wait_until(lambda: queue.explain(db, id_).waiting == 1)
    queue.put(db, "now")
    taker.join(30)
    assert not taker.is_alive()


def test_the_number_of_tasks_is_that_of_the_queue(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space, partitions=4)
    tasks = [queue.put(db, number) for number in range(8)]
    assert queue.explain(db, tasks[0]).tasks == 8


def test_a_call_that_waits_takes_no_held_task(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=2)
    key = moving_key(0, 2, 4)
    queue.put(db, "old", key=key)
    old = queue.take(db, 0)
    assert old is not None
    queue.repartition(db, 4)
    id_ = queue.put(db, "new", key=key).id
    taker = Thread(target=lambda: queue.take(db, 60))
    taker.start()
    wait_until(lambda: queue.explain(db, id_).waiting == 1)
    last = queue.explain(db, id_).reasons[-1]
    queue.ack(db, old)
    taker.join(30)
    assert not taker.is_alive()
    assert (last.why, last.cure) == (Why.NEXT, "Its turn comes.")
