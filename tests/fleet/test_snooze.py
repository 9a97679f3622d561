"""Tasks that their handler puts off, or ends with a verb: no failure, and no lost lease."""

import logging
import threading

import pytest

import fdbqueue
from fdbqueue import Bury, Done, Failure, Hooks, Snooze, TaskQueue, Unavailable, Worker
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.outcomes import Snoozed, judge
from fdbqueue.fleet.status import Tally
from tests.queue_support import FATES, faulty, in_turn

VERBS = {
    "ack": lambda queue, tr, task: queue.ack(tr, task),
    "delete": lambda queue, tr, task: queue.delete(tr, task),
    "defer": lambda queue, tr, task: queue.defer(tr, task, 0.01),
    "release": lambda queue, tr, task: queue.release(tr, task),
    "fail": lambda queue, tr, task: queue.release(tr, task, failure=Failure("Odd")),
    "bury": lambda queue, tr, task: queue.bury(tr, task),
}
TOLD = {
    "ack": ["succeeded"],
    "delete": ["succeeded"],
    "defer": ["snoozed", "succeeded"],
    "release": ["snoozed", "succeeded"],
    "fail": ["retried", "succeeded"],
    "bury": ["buried"],
}


@pytest.mark.parametrize("kind", fdbqueue.tasks.options.kind_names())
def test_a_snooze_is_no_failure_in_queues_of_every_kind(db, space, kind):
    q, failures = TaskQueue.create(db, "other", kind, root=space), []

    def handler(task):
        failures.append(task.failures)
        if task.attempts < 4:
            raise Snooze(0.01, "the limit is reached")

    q.put(db, "x")
    worker = Worker(db, q, handler, attempts=1, root=space)
    worker.run(until_empty=True)
    assert failures == [0] * 4
    assert worker.status().tally == Tally(done=1, snoozed=3)


def test_a_snoozed_task_gives_way_within_its_key(db, space):
    q, tried = TaskQueue.create(db, "sites", "utube", root=space), []

    def handler(task):
        tried.append(task.data)
        if tried == ["first"]:
            raise Snooze(0.2)

    q.put_many(db, ["first", "second"], key="site")
    Worker(db, q, handler, threads=1, root=space).run(until_empty=True)
    assert tried == ["first", "second", "first"]


def test_a_snooze_is_logged_with_its_reason(db, queue, caplog):
    """At level info: a rate limit is no trouble."""
    events = []

    def handler(task):
        if task.attempts == 1:
            raise Snooze(0.01, "the limit is reached")

    id_ = queue.put(db, "x").id
    with caplog.at_level(logging.INFO, logger="fdbqueue.worker"):
        Worker(db, queue, handler, hooks=Hooks(snoozed=events.append)).run(until_empty=True)
    assert [(event.task.id, event.delay_s) for event in events] == [(id_, 0.01)]
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage().endswith(", again in 0.0 s: Snooze: the limit is reached")


def test_a_snooze_undoes_the_transaction_of_its_handler(db, queue, space):
    def handler(tr, task):
        tr.add(space["n"].key(), b"\x01")
        if task.attempts == 1:
            raise Snooze(0.01)

    queue.put(db, "x")
    Worker(db, queue, handler, transactional=True).run(until_empty=True)
    assert db[space["n"].key()] == b"\x01"


def test_the_delay_of_a_snooze_is_a_number_of_seconds():
    """A computed due time may lie in the past."""
    assert judge(Snooze(-3), "me") == Snoozed(0)
    assert judge(Snooze(1.5), "me") == Snoozed(1.5)
    for bad in (None, "soon", True, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="delay"):
            Snooze(bad)


@pytest.mark.parametrize("how", ["database", "its own transaction", "transactional"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.commits_by_hand
def test_a_lease_that_its_handler_ends_is_not_lost(db, queue, work, caplog, verb, how):
    """No event and no log line says so; the verb of the handler is the outcome."""
    commit = fdbqueue.transactional(lambda tr, task: VERBS[verb](queue, tr, task))

    def handler(*arguments):
        if (task := arguments[-1]).attempts == 1:
            if how == "its own transaction":
                commit(db, task)
            else:
                VERBS[verb](queue, db if how == "database" else arguments[0], task)

    queue.put(db, "x")
    with caplog.at_level(logging.INFO, logger="fdbqueue.worker"):
        # One thread: with two, the event of the second attempt may come before that of the first.
        told = work(handler, threads=1, transactional=how == "transactional")
    assert [name for name, _ in told] == TOLD[verb]
    assert "lease" not in caplog.text


def test_a_handler_that_goes_on_after_its_verb_is_not_warned(db, space):
    """Its ended lease is not renewed, which is no trouble."""
    q, told = TaskQueue.create(db, "short", "fifottl", ttr=2.1, root=space), []

    def handler(task):
        if task.attempts == 1:
            q.defer(db, task, 0.01)
            threading.Event().wait(1.5)
            task.check()

    q.put(db, "x")
    note = lambda event: told.append(event.name)  # noqa: E731
    hooks = Hooks(snoozed=note, succeeded=note, lease_lost=note)
    Worker(db, q, handler, hooks=hooks, threads=1, root=space).run(until_empty=True)
    assert told == ["snoozed", "succeeded"]


def test_an_error_after_a_verb_of_the_handler_is_logged(db, queue, work, caplog):
    def handler(task):
        queue.ack(db, task)
        raise ValueError("after the ack")

    queue.put(db, "x")
    assert work(handler) == [("succeeded", "x")]
    assert "after the ack" in caplog.text


@pytest.mark.parametrize("transactional", [False, True])
def test_an_effect_after_a_verb_of_the_handler_is_lost(db, queue, space, work, transactional):
    """The event is lease_lost: an effect that did not commit must not look like success."""

    def handler(*arguments):
        queue.ack(db, arguments[-1])
        raise Done(lambda tr: tr.add(space["n"].key(), b"\x01"))

    queue.put(db, "x")
    assert work(handler, transactional=transactional) == [("lease_lost", "x")]
    assert db[space["n"].key()] is None


def test_a_verb_that_did_not_commit_ends_nothing(db, queue, work):
    """The attempt goes on as if the handler had not used it."""

    @fdbqueue.transactional
    def bury(tr, task):
        queue.bury(tr, task)
        raise Bury("for good")

    queue.put(db, "x")
    assert work(lambda task: bury(db, task)) == [("buried", "x")]
    assert queue.statistics(db)["calls"]["bury"] == 1


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.commits_by_hand
def test_an_attempt_that_met_something_away_is_retried(db, queue, fdb_module, monkeypatch, fate):
    """An unknown result of the commit that puts it off is no lost lease."""
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.02)
    faults, engine = faulty(db, fdb_module.FDBError, RealRuntime())

    def handler(task):
        engine.fate, engine.commits = in_turn((0, True)), 0
        if task.attempts == 1:
            engine.fate = FATES[fate]
            raise Unavailable("the server is down")

    queue.put(db, "x")
    with faults:
        worker = Worker(faults, queue, handler, threads=1)
        worker.run(until_empty=True)
    assert worker.status().tally == Tally(failed=1, done=1)


def test_a_cancelled_task_that_meets_nothing_is_cancelled(db, queue, work):
    def handler(task):
        queue.cancel(db, task.id)
        raise Unavailable("the server is down")

    queue.put(db, "x")
    assert work(handler) == [("cancelled", "x")]


def test_a_verb_in_a_failed_transaction_ends_nothing(db, queue, work):
    """Its lease was lost meanwhile: that is the outcome."""

    def handler(tr, task):
        queue.release(tr, task)
        queue.delete(db, task.id)
        raise ValueError("odd")

    queue.put(db, "x")
    assert work(handler, transactional=True) == [("lease_lost", "x")]


def test_a_verb_beside_a_failed_transaction_is_told(db, queue, work):
    def handler(_, task):
        queue.bury(db, task)
        raise ValueError("odd")

    queue.put(db, "x")
    assert work(handler, transactional=True) == [("buried", "x")]
