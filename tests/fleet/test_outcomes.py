"""Outcomes: the meaning of the end of a handler for its task. On every engine, with real threads."""

import asyncio
import copy
import logging
import pickle
import threading

import pytest
from greenlet import GreenletExit

import fdbqueue
from fdbqueue import Bury, Done, Hooks, Retry, Session, Snooze, TaskQueue, Unavailable, Worker
from fdbqueue.core.errors import InvalidArgument, UnknownCodec
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.embedded import FDBError
from fdbqueue.fleet.feed import Feed, Outage
from fdbqueue.fleet.outcomes import stack_of
from fdbqueue.fleet.settling import Settling
from tests.fleet.conftest import SOON
from tests.support import PATIENCE_S, TOO_OLD


@pytest.mark.parametrize("kind", ["fifo", "limfifottl", "utube", "utubettl", "fair"])
def test_a_worker_takes_from_every_kind_of_queue(db, space, kind):
    """In kinds without delays, too, a failed task waits for its next attempt."""
    q, tried = TaskQueue.create(db, "other", kind, root=space), []

    def handler(task):
        tried.append(task.data)
        if task.attempts == 1:
            raise ValueError

    q.put_many(db, [1, 2, 3])
    Worker(db, q, handler, threads=2, backoff=SOON).run(until_empty=True)
    assert sorted(tried) == [1, 1, 2, 2, 3, 3]


def test_an_exception_retries_and_is_recorded(db, queue, work):
    """With its class, its message, and a traceback that begins in the handler."""
    id_ = queue.put(db, "x").id
    seen = []

    def handler(task):
        if task.attempts == 1:
            raise ValueError("odd")
        seen.extend(queue.failures(db, task))

    assert work(handler) == [("retried", "x"), ("succeeded", "x")]
    [failure] = seen
    assert (failure.error, failure.message, failure.outcome) == ("ValueError", "odd", "retried")
    assert failure.detail.splitlines()[1].strip().startswith(f'File "{__file__}"')
    assert failure.worker
    with pytest.raises(fdbqueue.FdbQueueError):
        queue.failures(db, id_)


def test_a_kicked_task_has_all_its_attempts_again(db, queue, work):
    def handler(_):
        raise ValueError

    queue.put(db, "x")
    for _ in range(2):
        assert work(handler, attempts=2) == [("retried", "x"), ("buried", "x")]
        queue.kick(db)


def test_the_effect_of_done_and_the_ack_are_one(db, queue, work, space):
    """The effect commits if and only if the ack does. An effect that raises is a failed attempt."""

    def handler(task):
        def effect(tr):
            tr.add(space["n"].key(), b"\x01")
            if task.attempts == 1:
                raise ValueError("half-way")

        raise Done(effect)

    queue.put(db, "x")
    assert work(handler) == [("retried", "x"), ("succeeded", "x")]
    assert db[space["n"].key()] == b"\x01"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, GreenletExit])
def test_a_base_exception_is_a_failed_attempt_too(db, queue, work, error):
    """It ends its thread, and another thread runs the next task."""

    def handler(_):
        raise error

    queue.put_many(db, [1, 2])
    assert work(handler, threads=1, attempts=1) == [("buried", 1), ("buried", 2)]


@pytest.mark.parametrize("verdict", [Bury, lambda reason: Retry(0, reason)])
def test_the_reason_of_a_verdict_may_be_any_object(db, queue, work, verdict):
    """If a reason could not be recorded, its task would stay taken."""

    def handler(_):
        raise verdict(KeyError("k"))

    id_ = queue.put(db, "x").id
    work(handler, attempts=1)
    assert [failure.message for failure in queue.failures(db, id_)] == ["'k'"]


def test_an_error_without_a_text_is_a_failed_attempt(db, queue, work):
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no words")

    def handler(_):
        raise Mute

    id_ = queue.put(db, "x").id
    assert work(handler, threads=1, attempts=1) == [("buried", "x")]
    assert queue.failures(db, id_)[0].message == "a Mute without a text (ValueError)"


def test_an_outage_has_longer_and_longer_pauses(db, queue, monkeypatch, space):
    """Although the queue answers all the time; threads that fail together share one pause."""
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.05)
    together, delays = threading.Barrier(4), []

    def handler(task):
        if task.attempts <= 3:
            together.wait(10)
            raise FDBError(1031)

    queue.put_many(db, range(4))
    hooks = Hooks(retried=lambda event: delays.append(event.delay_s))
    Worker(db, queue, handler, threads=4, hooks=hooks, root=space).run(until_empty=True)
    assert delays == [0.05] * 4 + [0.1] * 4 + [0.2] * 4


def test_a_young_transaction_that_is_too_old_is_tried_again(db, queue, work, fdb_module):
    """Its effect is not too slow: a cluster whose recovery has ended it gives the same error."""
    errors = [fdb_module.FDBError(TOO_OLD)]

    def handler(*_):
        if errors:
            raise errors.pop()

    queue.put(db, "x")
    assert work(handler, transactional=True) == [("succeeded", "x")]


def away():
    raise Unavailable("the server is down")


def snooze():
    raise Snooze(0.01)


def fail():
    raise ValueError("odd")


@pytest.mark.parametrize("end", [print, snooze, fail])
def test_an_attempt_that_meets_nothing_away_ends_an_outage(db, queue, monkeypatch, space, end):
    """The next outage begins with the first pause, else one of last week would make it long."""
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.01)
    pauses, rest = [], [away, end, away]

    def note(event):
        if isinstance(event.error, Unavailable):
            pauses.append(event.delay_s)

    queue.put_many(db, range(3))
    handler = lambda _: rest.pop(0)() if rest else None  # noqa: E731
    settings = {"threads": 1, "hooks": Hooks(retried=note), "backoff": SOON, "root": space}
    Worker(db, queue, handler, **settings).run(until_empty=True)
    assert pauses == [0.01, 0.01]


def test_a_take_that_is_answered_ends_an_outage(db, queue, monkeypatch, space):
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.01)
    pauses, met, take, fails = [], Outage.met, TaskQueue.take_many, [True, False, True]

    def take_now_and_then(*arguments, **options):
        if fails and fails.pop(0):
            raise FDBError(1031)
        return take(*arguments, **options)

    def noted(outage):
        pauses.append(met(outage))
        return pauses[-1]

    monkeypatch.setattr(TaskQueue, "take_many", take_now_and_then)
    monkeypatch.setattr(Outage, "met", noted)
    queue.put_many(db, range(3))
    Worker(db, queue, print, threads=1, root=space).run(until_empty=True)
    assert pauses == [0.01, 0.01]


def test_a_failure_that_cannot_be_committed_counts(db, space, monkeypatch):
    """The database is away at that moment, but the handler failed for another reason."""
    q = TaskQueue.create(db, "short", "fifottl", ttr=2, root=space)
    seen, away, fail = [], [FDBError(1031)], Settling.fail

    def fail_at_second_try(settling, hold, failed):
        if away:
            raise away.pop()
        return fail(settling, hold, failed)

    def handler(task):
        seen.append(task.failures)
        if task.attempts == 1:
            raise ValueError

    monkeypatch.setattr(Settling, "fail", fail_at_second_try)
    q.put(db, "x")
    Worker(db, q, handler, threads=1, backoff=SOON, root=space).run(until_empty=True)
    assert (seen, away) == ([0, 1], [])


def test_a_task_that_lost_too_many_leases_is_not_begun(db, queue, work, space):
    """The task is buried: it may have killed its processes."""
    id_ = queue.put(db, "poison").id
    for _ in range(3):
        session = Session(db, root=space)
        assert queue.take(db, 5, session=session)
        end_session(db, session._keys, session.id, lambda *_: True, died=True)
    assert work(lambda _: pytest.fail("begun"), attempts=3) == [("buried", "poison")]
    assert [f.outcome for f in queue.failures(db, id_)] == ["lease_lost", "lease_lost", "exhausted"]


def test_a_failure_excused_during_an_attempt_does_not_bury(db, queue, work, space):
    """The count of the take is out of date when the handler fails."""
    queue.put(db, "x")
    session = Session(db, root=space)
    late = queue.take(db, 5, session=session)
    end_session(db, session._keys, session.id, lambda *_: True, died=True)

    def handler(task):
        if task.attempts == 2:
            assert task.failures == 1
            queue.excuse(db, late)
            raise ValueError

    assert work(handler, attempts=2) == [("retried", "x"), ("succeeded", "x")]


def test_a_worker_begins_one_suspect_at_a_time(db, queue, space):
    """A task that lost its last lease may kill its process: the others must not run beside it."""
    session = Session(db, ttr=30, root=space)
    queue.put_many(db, range(4))
    queue.take_many(db, 4, session=session)
    end_session(db, session._keys, session.id, lambda *_: True, died=True)
    lock, together = threading.Lock(), []

    def handler(_):
        together.append(lock.acquire(blocking=False))
        threading.Event().wait(0.02)
        lock.release()

    Worker(db, queue, handler, threads=4, root=space).run(until_empty=True)
    assert together == [True] * 4


def test_the_started_event_comes_first(db, queue, work):
    told = []
    note = lambda event: told.append(event.name)  # noqa: E731
    queue.put(db, "x")
    work(lambda _: told.append("handler"), hooks=Hooks(started=note, succeeded=note))
    assert told == ["started", "handler", "succeeded"]


def test_logs_name_the_task(db, queue, work, caplog):
    def handler(task):
        if task.attempts == 1:
            raise ValueError("odd")

    id_ = queue.put(db, "x").id
    with caplog.at_level(logging.DEBUG, logger="fdbqueue.worker"):
        work(handler)
    told = [record.getMessage() for record in caplog.records]
    assert all(id_ in line for line in told)
    assert [line.split(": ")[1].split(" ")[0] for line in told] == [
        "started",
        "retried",
        "started",
        "succeeded",
    ]


def test_an_unreadable_task_that_is_gone_ends_no_worker(db, queue, monkeypatch, space):
    """The task that is left is only delayed."""
    feed, session = Feed(db, [(queue, 1)]), Session(db, root=space)
    queue.put(db, "later", delay=500)

    def fail(*_, **__):
        raise UnknownCodec(codec="theirs")

    with monkeypatch.context() as patch:
        patch.setattr(TaskQueue, "take_many", fail)
        assert feed.take(1, session, 0) == []
    with pytest.raises(UnknownCodec):
        feed.require_readable()
    assert feed.take(1, session, 0) == []
    feed.require_readable()
    assert not feed.is_empty()
    session.end()


def test_another_process_gets_a_held_task_as_its_lease(db, queue, work):
    """A handler may pass its task to a process pool: there it has no worker, and its lease all the same."""
    queue.put(db, "x")
    seen = []

    def handler(task):
        there = pickle.loads(pickle.dumps(task))
        assert (there, copy.deepcopy(task).hold) == (task, task.hold)
        with pytest.raises(InvalidArgument, match="a task that a worker passed to a handler"):
            there.check() or there.database
        seen.append(queue.ack(db, there).data)

    work(handler)
    assert seen == ["x"]


def test_the_stack_of_a_handler_goes_beyond_adapters():
    """A handler that hangs there is to be found in its stack."""
    hangs, ends = threading.Event(), threading.Event()
    adapter = {"__name__": "fdbqueue.integrations.common", "hangs": hangs, "ends": ends}
    exec("def wait():\n    hangs.set()\n    ends.wait(60)\n", adapter)  # a frame of an adapter

    def the_handler():
        adapter["wait"]()

    thread = threading.Thread(target=the_handler)
    thread.start()
    hangs.wait(PATIENCE_S)
    stack = stack_of(thread.ident)
    ends.set()
    thread.join()
    assert "the_handler" in stack
