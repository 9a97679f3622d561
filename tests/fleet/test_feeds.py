"""Feeds of several queues: errors, dropped queues and missing threads cost no task of another queue."""

import logging
import time

import pytest

from fdbqueue import Session, TaskQueue, Worker
from fdbqueue.core import limits
from fdbqueue.core.errors import UnknownCodec, UnknownSession
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.feed import Feed
from fdbqueue.tasks.intake import Intake
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


def test_busy_queues_get_their_shares_and_none_starves(db, space, queues):
    for queue in queues:
        queue.put_many(db, range(200))
    order = []
    worker = Worker(db, {"one": 3, "two": 1}, lambda task: order.append(task.queue), threads=4, root=space)
    worker.run(until_empty=True)
    first = order[:160]
    assert 0.65 < first.count("one") / len(first) < 0.85


def test_a_turn_of_a_queue_counts_each_of_its_tasks(db, space, queues, feed):
    for queue in queues:
        queue.put_many(db, range(9))
    with Session(db, root=space) as session:
        assert [source.name for source, _ in feed.take(4, session, 0.0)] == 4 * ["one"]
        assert [feed.take(1, session, 0.0)[0][0].name for _ in range(4)] == 4 * ["two"]


@pytest.mark.parametrize("other", ["fails", "begins late"])
def test_the_wait_at_another_queue_holds_up_no_task(db, space, queues, feed, monkeypatch, other):
    """It fails; or it begins after the task was found: then it is ended, as the lease may end before."""
    take = Feed._take
    queues[0].put(db, "x")

    def take_or_wait(feed, number, count, session, timeout_s, stop):
        if not timeout_s:  # so that it waits
            return []
        if number == 1 and other == "fails":
            raise UnknownSession(session="of the other queue")
        if number == 1:
            assert stop.wait(PATIENCE_S)
        return take(feed, number, count, session, timeout_s, stop)

    monkeypatch.setattr(Feed, "_take", take_or_wait)
    with Session(db, root=space) as session:
        began = time.monotonic()
        assert [task.data for _, task in feed.take(1, session, 3 * PATIENCE_S)] == ["x"]
        assert time.monotonic() - began < PATIENCE_S


def test_a_queue_that_is_not_looked_at_saves_up_no_turns(db, space, queues, feed, monkeypatch):
    """A queue that was empty is not looked at for a while, and its turns go to the others."""
    monkeypatch.setattr(limits, "EMPTY_QUEUE_LOOK_S", 600.0)
    monkeypatch.setattr(limits, "WORKER_WAIT_S", 0.0)
    queues[0].put_many(db, range(20))
    with Session(db, root=space) as session:
        assert sum(len(feed.take(1, session, 0.0)) for _ in range(20)) == 20
        assert feed.take(1, session, 0.0) == []  # from now on it is looked at again
        for queue in queues:
            queue.put_many(db, range(10))
        names = [feed.take(1, session, 0.0)[0][0].name for _ in range(10)]
    assert 4 <= names.count("two") <= 6
