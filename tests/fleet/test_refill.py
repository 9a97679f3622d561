"""Acks of a worker of one queue take tasks along, for the threads that they free."""

import threading

import pytest

from fdbqueue import Hooks, Worker
from fdbqueue.core import limits
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.observing import Observer, observe
from fdbqueue.core.once import LostConflict
from fdbqueue.core.seam import FDBError
from fdbqueue.fleet.feed import Refill
from fdbqueue.tasks.acks import Acks
from fdbqueue.tasks.calls import TaskCalls
from tests.fleet.conftest import SOON
from tests.support import PATIENCE_S, wait_until

TASKS = 40


@pytest.fixture
def worked(db, space, queue):
    """Work the queue off, in one thread or several. Return the data in the order of the begins."""

    def work(threads=1, handler=lambda task: None, **options):  # noqa: ARG005  # no-op
        begun = []

        def handle(task):
            begun.append(task.data)
            return handler(task)

        queue.put_many(db, range(TASKS))
        Worker(db, queue, handle, threads=threads, root=space, **options).run(until_empty=True)
        return begun

    return work


def done(db, queue):
    counts = queue.statistics(db)["tasks"]
    return counts["done"], counts["ready"] + counts["taken"] + counts["buried"]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_task_costs_at_most_one_commit_behind_its_put(db, queue, worked, threads):
    before = db.counters.commits
    assert sorted(worked(threads)) == list(range(TASKS))
    assert done(db, queue) == (TASKS, 0)
    # Its session and its end are some twenty; apart, a take and an ack are two for each task.
    assert db.counters.commits - before < TASKS * 2


def test_one_thread_begins_tasks_in_order(worked):
    assert worked() == list(range(TASKS))


@pytest.mark.parametrize("error", [ValueError("a take"), LostConflict(), FDBError(1031)], ids=repr)
def test_a_take_that_fails_fails_no_ack(db, queue, worked, monkeypatch, error):
    within, take = [], Taker.take_in_turn
    ack_and_take = Acks._ack_and_take

    def acks(*given):
        within.append(True)
        try:
            return ack_and_take(*given)
        finally:
            within.clear()

    def fail(*given):
        if within:
            raise error
        return take(*given)

    monkeypatch.setattr(Acks, "_ack_and_take", acks)
    monkeypatch.setattr(Taker, "take_in_turn", fail)
    assert worked() == list(range(TASKS))
    assert done(db, queue) == (TASKS, 0)


def test_a_take_that_fails_before_it_begins_fails_no_ack(db, queue, worked, monkeypatch):
    """With partitions, it may have to read first."""

    def fail(*_):
        raise FDBError(1031)

    monkeypatch.setattr(TaskCalls, "_taking", fail)
    assert worked() == list(range(TASKS))
    assert done(db, queue) == (TASKS, 0)


def test_a_hook_that_hangs_keeps_no_task_from_other_workers(db, space, queue, monkeypatch):
    """The ack has taken the second task for the thread that tells the hook."""
    monkeypatch.setattr(limits, "REFILL_LIES_S", 0.01)
    goes_on, told = threading.Event(), threading.Event()

    def hang(_):
        told.set()
        goes_on.wait(PATIENCE_S)

    queue.put_many(db, range(2))
    worker = Worker(db, queue, lambda _: None, threads=1, hooks=Hooks(succeeded=hang), root=space)
    worker.start()
    assert told.wait(PATIENCE_S)
    Worker(db, queue, lambda _: None, root=space).run(until_empty=True)
    assert done(db, queue) == (2, 0)
    goes_on.set()
    worker.stop()
    assert worker.join(PATIENCE_S)


def test_a_stopped_worker_returns_what_acks_have_taken(db, space, queue):
    """Two threads end together, and the worker stops before either begins the next task."""
    both = threading.Barrier(2)
    tasks = queue.put_many(db, range(6))

    def handle(task):
        both.wait(PATIENCE_S)
        if task.data == 1:
            worker.stop()

    worker = Worker(db, queue, handle, threads=2, root=space)
    worker.run()
    counts = queue.statistics(db)["tasks"]
    assert counts["taken"] == 0
    assert counts["done"] + counts["ready"] == len(tasks)
    assert all(task.failures == 0 for task in queue.tasks(db, "r", len(tasks)))


def test_what_acks_take_during_a_stop_waits_for_no_handler(db, space, queue, monkeypatch):
    """The acks commit while the worker stops; a handler runs until its grace is over."""
    long, stopped = threading.Event(), threading.Event()
    begin = Refill.begin

    def begin_and_stop(refill, acks):
        wanted = begin(refill, acks)
        if wanted is not None and not stopped.is_set():
            worker.stop()
            stopped.set()
        return wanted

    monkeypatch.setattr(Refill, "begin", begin_and_stop)
    queue.put_many(db, ["long", 1, 2, 3])
    worker = Worker(db, queue, lambda task: task.data == "long" and long.wait(), threads=2, root=space)
    worker.start()
    assert stopped.wait(PATIENCE_S)
    wait_until(lambda: queue.statistics(db)["tasks"]["taken"] == 1)
    long.set()
    assert worker.join(PATIENCE_S)


def test_a_failing_handler_beside_acks_stalls_no_thread(db, queue, worked):
    """A failure takes nothing along: the feeder does, once no acks take."""
    tried = set()

    def handle(task):
        if task.data % 3 == 0 and task.data not in tried:
            tried.add(task.data)
            raise ValueError("once")

    worked(4, handle, backoff=SOON)
    assert done(db, queue) == (TASKS, 0)


def test_observers_hear_of_tasks_that_acks_take(worked):
    taken = []

    class Takes(Observer):
        def call(self, call):
            return lambda _: taken.extend(call.tasks) if call.name == "take" else None

    with observe(Takes()):
        worked()
    assert sorted(task.data for task in taken) == list(range(TASKS))
