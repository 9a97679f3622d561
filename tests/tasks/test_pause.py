"""No call gets a task from a paused queue until it is resumed."""

import threading

import pytest

from fdbqueue import TaskQueue
from fdbqueue.core.seam import engine_errors
from tests.support import NOT_COMMITTED, PATIENCE_S, commit_code


@pytest.fixture
def queue(db, space):
    return TaskQueue.create(db, "paused", "fifottl", root=space)


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


def test_a_repartition_conflicts_with_a_pause_it_has_not_seen(db, queue):
    """Its new partitions would give tasks in the paused queue."""
    tr = db.create_transaction()
    queue.repartition(tr, 4)
    queue.pause(db)
    assert commit_code(tr) == NOT_COMMITTED
