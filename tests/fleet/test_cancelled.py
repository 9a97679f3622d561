"""Cancelled tasks of workers: a handler learns of a cancel within a heartbeat, and no attempt follows."""

import threading

import pytest

from fdbqueue import HeldTask, Hooks, InvalidArgument, TaskCancelled, TaskQueue, TaskState, Worker, workers
from fdbqueue.core import limits
from fdbqueue.fleet.outcomes import Cancelled, Failed, judge
from fdbqueue.fleet.status import Tally
from tests.fleet.conftest import SOON, working
from tests.support import wait_until

TTR_S = 1.5  # a heartbeat comes each third of it; a busy machine renews later


@pytest.fixture
def short(db, space):
    return TaskQueue.create(db, "short", "fifottl", ttr=TTR_S, root=space)


class Patient:
    """A handler that checks its task until that raises; afterwards it ends as the test says."""

    def __init__(self, end=None):
        self.begun, self.task, self._end = threading.Event(), None, end

    def __call__(self, task):
        self.task = task
        self.begun.set()
        try:
            while not task.database.runtime.event().wait(0.02):
                task.check()
        except TaskCancelled:
            if self._end is None:
                raise
            self._end(task)


def fail(_):
    raise ValueError("odd")


def cancelled_while_running(db, queue, handler, **options):
    """Cancel the task of a running handler. Return the events of its worker, and the tally."""
    told = []
    note = lambda event: told.append(event.name)  # noqa: E731
    hooks = Hooks(succeeded=note, retried=note, buried=note, lease_lost=note, cancelled=note)
    id_ = queue.put(db, "x").id
    with working(Worker(db, queue, handler, hooks=hooks, backoff=SOON, **options)) as worker:
        assert handler.begun.wait(20)
        queue.cancel(db, id_)
        wait_until(lambda: told)
    return told, worker.status().tally


def test_a_handler_that_leaves_the_error_ends_its_task(db, short):
    told, tally = cancelled_while_running(db, short, Patient())
    assert (told, tally) == (["cancelled"], Tally(cancelled=1))
    assert short.statistics(db)["ends"]["cancelled"] == 1


def test_a_lease_without_an_end_learns_of_a_cancel_too(db, space):
    queue = TaskQueue.create(db, "lasting", "fifo", root=space)
    told, _ = cancelled_while_running(db, queue, Patient(), session_ttr_s=TTR_S, root=space)
    assert told == ["cancelled"]


@pytest.mark.parametrize("attempts", [1, 5])
def test_a_handler_that_fails_after_a_cancel_ends_its_task(db, short, attempts):
    told, tally = cancelled_while_running(db, short, Patient(fail), attempts=attempts)
    assert (told, tally) == (["cancelled"], Tally(cancelled=1))
    assert short.statistics(db)["tasks"]["buried"] == 0


def test_a_handler_in_the_transaction_of_its_ack_ends_its_task(db, short):
    handler = Patient()
    handler_of_two = lambda tr, task: handler(task)  # noqa: ARG005, E731
    handler_of_two.begun = handler.begun
    told, tally = cancelled_while_running(db, short, handler_of_two, transactional=True)
    assert (told, tally) == (["cancelled"], Tally(cancelled=1))


def test_the_running_tasks_tell_of_a_cancel(db, short, monkeypatch):
    """Before its handler ends."""
    monkeypatch.setattr(limits, "PRESENCE_EVERY_S", 0.1)
    shown = lambda: [one.cancelled for found in workers(db) for one in found.running if one.id == id_]  # noqa: E731
    may_end = threading.Event()
    handler = Patient(lambda task: may_end.wait(20))  # noqa: ARG005
    id_ = short.put(db, "x").id
    with working(Worker(db, short, handler)) as worker:
        assert handler.begun.wait(20)
        wait_until(lambda: shown() == [False])
        short.cancel(db, id_)
        wait_until(lambda: [running.cancelled for running in worker.status().running] == [True])
        assert handler.task.cancelled
        wait_until(lambda: shown() == [True])
        may_end.set()


def test_an_error_about_another_task_is_a_failure():
    error = TaskCancelled(id="x")
    assert isinstance(judge(error, "here"), Failed)
    assert isinstance(judge(error, "here", cancelled=True), Cancelled)


def test_a_handler_tells_its_progress_and_learns_of_a_cancel(db, short):
    """Without a heartbeat: the call reads the task."""
    may_go = threading.Event()

    def handler(task):
        task.progress(0.4)
        assert may_go.wait(20)
        task.progress(0.8)
        task.check()

    id_ = short.put(db, "x").id
    with working(Worker(db, short, handler)) as worker:
        assert short.wait_for_progress(db, id_, None, 20).fraction == 0.4
        wait_until(lambda: [running.fraction for running in worker.status().running] == [0.4])
        short.cancel(db, id_)
        may_go.set()
        wait_until(lambda: worker.status().tally == Tally(cancelled=1))


def test_a_transactional_handler_tells_no_progress(db, short):
    """It would begin again for ever."""
    errors = []

    def handler(_, task):
        with pytest.raises(InvalidArgument, match="transactional") as error:
            task.progress(0.4)
        errors.append(error)

    short.put(db, "x")
    Worker(db, short, handler, transactional=True).run(until_empty=True)
    assert len(errors) == 1


def test_a_task_outside_a_worker_tells_no_progress():
    with pytest.raises(InvalidArgument):
        HeldTask("x", TaskState.TAKEN, None).progress(0.4)
