"""No call gets a task from a paused queue until it is resumed."""

import threading

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.core.errors import QueueDropped
from fdbqueue.core.fdberror import engine_errors
from tests.support import NOT_COMMITTED, PATIENCE_S, commit_code


@pytest.fixture
def queue(db, space):
    return TaskQueue.create(db, "paused", "fifottl", root=space)


def test_nothing_is_taken_from_a_paused_queue(db, queue):
    """No take gets a task, given a database or a transaction; tasks put meanwhile wait as well."""
    queue.put(db, 1)
    queue.pause(db)
    queue.put(db, 2)
    assert queue.paused(db)
    assert queue.take(db, 0) is None
    assert fdbqueue.transactional(lambda tr: queue.take(tr))(db) is None


def test_resuming_gives_everything_in_its_order(db, queue):
    queue.pause(db)
    queue.pause(db)  # twice is once
    queue.put_many(db, [1, 2])
    queue.resume(db)
    assert not queue.paused(db)
    assert [task.data for task in queue.take_many(db, 5)] == [1, 2]


def test_a_task_that_is_held_can_be_ended_in_a_paused_queue(db, queue):
    queue.put(db, 1)
    task = queue.take(db, 0)
    queue.pause(db)
    queue.ack(db, task)
    assert queue.statistics(db)["tasks"]["total"] == 0


@pytest.mark.usefixtures("without_looks")
def test_a_waiting_take_is_woken_by_resume(db, queue):
    """A waiting take gets no task that is put into a paused queue, until the queue is resumed."""
    queue.pause(db)
    taken = []
    waiter = threading.Thread(target=lambda: taken.append(queue.take(db, 100 * PATIENCE_S)))
    waiter.start()
    queue.put(db, "late")
    waiter.join(0.3)
    assert waiter.is_alive()
    queue.resume(db)
    waiter.join(PATIENCE_S)
    assert taken[0].data == "late"


def test_a_take_and_a_pause_that_overlap_are_in_one_order(db, queue):
    """A take that saw the queue running cannot commit after the pause."""
    queue.put(db, 1)
    tr = db.create_transaction()
    assert queue.take(tr) is not None
    queue.pause(db)
    with pytest.raises(engine_errors()) as failed:
        tr.commit().wait()
    assert failed.value.code == 1020


def test_a_queue_that_was_dropped_cannot_be_paused(db, queue):
    queue.drop(db)
    for call in (queue.pause, queue.resume, queue.paused):
        with pytest.raises(QueueDropped):
            call(db)


def test_a_repartition_conflicts_with_a_pause_it_has_not_seen(db, queue):
    """Its new partitions would give tasks in the paused queue."""
    tr = db.create_transaction()
    queue.repartition(tr, 4)
    queue.pause(db)
    assert commit_code(tr) == NOT_COMMITTED
