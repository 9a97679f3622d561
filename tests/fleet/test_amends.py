"""Attempts that the database, not their worker, has ended: they do not count, and their tasks come back."""

import threading
from dataclasses import replace

import pytest

from fdbqueue import Hooks, Session, Snooze, TaskQueue, Worker
from fdbqueue.core import limits
from fdbqueue.core.runtime import RealEvent
from fdbqueue.embedded import FDBError
from fdbqueue.fleet.feed import Feed
from fdbqueue.fleet.settling import Settling
from tests.fleet.conftest import SOON, Beaten, working
from tests.support import PATIENCE_S, TIMED_OUT, TOO_OLD

pytestmark = pytest.mark.commits_by_hand


def test_an_attempt_with_a_timeout_wakes_the_heartbeat(db, queue, space):
    """Else the heartbeat would end it after its next renewal."""
    beaten = Beaten(db, space, [queue], timeout_s=1)
    beaten.heartbeat._woken.clear()
    beaten.heartbeat._wakes_at = beaten.heartbeat._tick()
    beaten.heartbeat.began(beaten.holds[0])
    assert beaten.heartbeat._woken.is_set()


def test_the_leases_of_a_dropped_queue_are_lost(db, queue, space):
    beaten = Beaten(db, space, [queue])
    queue._shape.registry.drop(db, "jobs")
    again_at = beaten.renew_all()
    assert beaten.holds[0].lost
    assert again_at > db.runtime.monotonic()


def test_leases_are_renewed_in_several_batches(db, queue, space, monkeypatch):
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    beaten = Beaten(db, space, [queue], 5)
    beaten.renew_all()
    assert all(hold.beat_at > 0 for hold in beaten.holds)


def test_the_end_of_a_session_takes_away_its_own_leases(db, queue, space):
    beaten = Beaten(db, space, [queue])
    [other] = beaten.take(queue, 1, Session(db, root=space))
    beaten.heartbeat.lose_all(beaten.holds[0].session)
    assert (beaten.holds[0].lost, other.lost) == (True, False)


class Away:
    """A step that fails as if the database were away, the first time."""

    def __init__(self, monkeypatch, owner, step):
        self._original, self._errors = getattr(owner, step), [FDBError(TIMED_OUT)]
        monkeypatch.setattr(owner, step, lambda *given, **named: self(*given, **named))

    def __call__(self, *given, **named):
        if self._errors:
            raise self._errors.pop()
        return self._original(*given, **named)

    @property
    def is_over(self):
        return not self._errors


def test_a_task_not_given_back_in_an_outage_comes_back(db, space, monkeypatch):
    """It came too late to begin. Its lease has no end: it would stay taken as long as the worker runs."""
    queue, done = TaskQueue.create(db, "lasting", "fifo", root=space), threading.Event()
    away, take, late = Away(monkeypatch, Settling, "give_back"), Feed.take, [True]

    def take_late(feed, *given):
        found = take(feed, *given)
        if found and late and late.pop():
            return [(q, replace(task, until=1.0)) for q, task in found]
        return found

    monkeypatch.setattr(Feed, "take", take_late)
    queue.put(db, "x")
    worker = Worker(db, queue, lambda _: done.set(), threads=1, root=space)
    with working(worker):
        assert done.wait(PATIENCE_S)
    assert away.is_over


def test_a_snooze_that_an_outage_stops_is_no_failure(db, space, monkeypatch):
    queue, seen = TaskQueue.create(db, "long", "fifottl", ttr=600, root=space), []
    away = Away(monkeypatch, TaskQueue, "defer")

    def handler(task):
        seen.append(task.failures)
        if task.attempts == 1:
            raise Snooze(0)

    queue.put(db, "x")
    Worker(db, queue, handler, threads=1, attempts=1, root=space).run(until_empty=True)
    assert (seen, away.is_over) == ([0, 0], True)


def test_a_failure_that_an_outage_stops_ends_its_lease(db, space, monkeypatch):
    """Leases of this kind have no end: the task would stay taken as long as the worker runs."""
    queue, done = TaskQueue.create(db, "lasting", "fifo", root=space), threading.Event()
    away = Away(monkeypatch, Settling, "fail")

    def handler(task):
        if task.attempts == 1:
            raise ValueError("odd")

    queue.put(db, "x")
    hooks = Hooks(succeeded=lambda _: done.set())
    worker = Worker(db, queue, handler, threads=1, hooks=hooks, backoff=SOON, root=space)
    with working(worker):
        assert done.wait(PATIENCE_S)
    assert away.is_over


def test_a_verb_that_could_not_commit_is_no_outcome(db, queue, work):
    """The task was deleted while the transaction of its ack hung."""
    hang = threading.Event()

    def handler(tr, task):
        queue.ack(tr, task)
        queue.delete(db, task.id)
        hang.wait(PATIENCE_S)

    queue.put(db, "x")
    assert work(handler, threads=1, timeout_s=0.1, transactional=True) == [("lease_lost", "x")]
    hang.set()


def test_a_handler_that_meets_its_old_transaction_is_told(db, queue, work, monkeypatch):
    """It is too slow, and a second try would be as slow."""
    monkeypatch.setattr(limits, "EFFECT_MAX_S", 0.0)
    tries = []

    def handler(*_):
        tries.append(1)
        if len(tries) == 1:
            raise FDBError(TOO_OLD)

    id_ = queue.put(db, "x").id
    assert work(handler, transactional=True, attempts=1) == [("buried", "x")]
    assert (len(tries), queue.failures(db, id_)[0].error) == (1, "EffectTooSlow")


def test_a_worker_begins_nothing_while_something_is_away(db, queue, space, monkeypatch):
    """Each of its tasks needs what is away."""
    monkeypatch.setattr(limits, "AWAY_FIRST_S", 600.0)
    monkeypatch.setattr(limits, "AWAY_MAX_S", 600.0)
    begun, pauses = [], threading.Semaphore(0)

    class Stopped(RealEvent):
        def wait(self, timeout=None):
            pauses.release()
            return super().wait(timeout)

    def handler(task):
        begun.append(task.data)
        raise FDBError(TIMED_OUT)

    queue.put_many(db, range(2))
    worker = Worker(db, queue, handler, threads=1, root=space)
    monkeypatch.setattr(worker, "_stopped", Stopped())
    with working(worker):
        assert pauses.acquire(timeout=PATIENCE_S)
    assert begun == [0]
