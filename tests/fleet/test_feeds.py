"""Feeds of several queues: errors, dropped queues and missing threads cost no task of another queue.

And of one queue, whose acks take tasks along.
"""

import logging
import threading

import pytest

from fdbqueue import Session, TaskQueue, Worker
from fdbqueue.core.errors import UnknownCodec
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.observing import Observer, observe
from fdbqueue.core.once import LostConflict
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.feed import Feed
from fdbqueue.tasks.calls import Acks
from fdbqueue.tasks.intake import Intake
from tests.fleet.conftest import SOON
from tests.support import PATIENCE_S


@pytest.fixture
def queues(db, space):
    return [TaskQueue.create(db, name, "fifottl", root=space) for name in ("one", "two")]


@pytest.fixture
def feed(db, queues):
    return Feed(db, [(queue, 1) for queue in queues])


def unreadable_in(monkeypatch, *names):
    """Takes from these queues find a task that this process cannot read."""
    take = TaskQueue.take_many

    def take_or_fail(queue, *given, **named):
        if queue.name in names:
            raise UnknownCodec(codec="theirs")
        return take(queue, *given, **named)

    monkeypatch.setattr(TaskQueue, "take_many", take_or_fail)


@pytest.mark.parametrize("unreadable", [0, 1])
def test_an_unreadable_task_ends_no_work_in_another_queue(db, space, queues, feed, monkeypatch, unreadable):
    """The task of the other queue is only delayed."""
    unreadable_in(monkeypatch, queues[unreadable].name)
    ids = [queue.put(db, "x", delay=500).id for queue in queues]
    with Session(db, root=space) as session:
        assert feed.take(1, session, 0) == []
    feed.require_readable()
    queues[1 - unreadable].delete(db, ids[1 - unreadable])
    with pytest.raises(UnknownCodec):
        feed.require_readable()


def test_an_unreadable_task_is_logged_now_and_then(db, space, queues, feed, monkeypatch, caplog):
    unreadable_in(monkeypatch, *[queue.name for queue in queues])
    with caplog.at_level(logging.WARNING), Session(db, root=space) as session:
        for _ in range(3):
            assert feed._take(0, 1, session, 0, db.runtime.event()) == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("gone", [0, 1])
def test_a_feed_goes_on_with_the_queue_that_is_left(db, space, queues, feed, gone):
    queues[gone].drop(db)
    queues[1 - gone].put_many(db, range(3))
    with Session(db, root=space) as session:
        while len(feed._there()) > 1:
            feed._take(gone, 1, session, 0, db.runtime.event())
        assert [task.data for _, task in feed.take(3, session, 0)] == [0, 1, 2]


def test_a_wait_returns_its_task_though_no_other_can_begin(db, space, queues, feed, monkeypatch):
    """No thread can be started for the second queue. The task would stay taken by nobody."""
    monkeypatch.setattr(Intake, "look", lambda *_: [])
    queues[0].put(db, "x")
    spawn, waiters = RealRuntime.spawn, []

    def spawn_one(runtime, target, name):
        if name != "fdbqueue-waiter":
            return spawn(runtime, target, name)
        if waiters:
            waiters[0].join(PATIENCE_S)  # it has taken the task
            raise RuntimeError("can't start new thread")
        waiters.append(spawn(runtime, target, name))
        return waiters[0]

    monkeypatch.setattr(RealRuntime, "spawn", spawn_one)
    with Session(db, root=space) as session:
        assert [task.data for _, task in feed.take(1, session, PATIENCE_S)] == ["x"]


# Acks that take tasks along.

TASKS = 40


@pytest.fixture
def worked(db, space, queues):
    """Work the first queue off, in one thread or several. Return the data in the order of the begins."""

    def work(threads=1, handler=lambda task: None, **options):  # noqa: ARG005  # no-op
        begun = []

        def handle(task):
            begun.append(task.data)
            return handler(task)

        queue = queues[0]
        queue.put_many(db, range(TASKS))
        Worker(db, queue, handle, threads=threads, root=space, **options).run(until_empty=True)
        return begun

    return work


def done(db, queue):
    counts = queue.statistics(db)["tasks"]
    return counts["done"], counts["ready"] + counts["taken"] + counts["buried"]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_task_costs_at_most_one_commit_behind_its_put(db, queues, worked, threads):
    before = db.counters.commits
    assert sorted(worked(threads)) == list(range(TASKS))
    assert done(db, queues[0]) == (TASKS, 0)
    assert db.counters.commits - before < TASKS + 30  # some twenty are those of its session, and of its end


def test_one_thread_begins_tasks_in_order(worked):
    assert worked() == list(range(TASKS))


@pytest.mark.parametrize("error", [ValueError("a take"), LostConflict()], ids=str)
def test_a_take_that_fails_fails_no_ack(db, queues, worked, monkeypatch, error):
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
    assert done(db, queues[0]) == (TASKS, 0)


def test_a_stopped_worker_returns_what_acks_have_taken(db, space, queues):
    """Two threads end together, and the worker stops before either begins the next task."""
    queue, both = queues[0], threading.Barrier(2)
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


def test_a_failing_handler_beside_acks_stalls_no_thread(db, queues, worked):
    """A failure takes nothing along: the feeder does, once no acks take."""
    tried = set()

    def handle(task):
        if task.data % 3 == 0 and task.data not in tried:
            tried.add(task.data)
            raise ValueError("once")

    worked(4, handle, backoff=SOON)
    assert done(db, queues[0]) == (TASKS, 0)


def test_observers_hear_of_tasks_that_acks_take(worked):
    taken = []

    class Takes(Observer):
        def call(self, call):
            return lambda _: taken.extend(call.tasks) if call.name == "take" else None

    with observe(Takes()):
        worked()
    assert sorted(task.data for task in taken) == list(range(TASKS))
