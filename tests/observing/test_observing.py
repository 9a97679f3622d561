"""Observers: what they are told, and that they change nothing."""

import logging
import queue as queue_module
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import fdbqueue
from fdbqueue import (
    FairQueue,
    FdbQueueError,
    Hooks,
    NotTaken,
    PersistentQueue,
    Queue,
    Session,
    TaskQueue,
    UnknownSession,
    Worker,
    transactional,
)
from fdbqueue.core import observing
from fdbqueue.core.errors import QueueDropped, WaitStopped
from fdbqueue.core.line.taking import Takes
from fdbqueue.core.logger import Troubles
from fdbqueue.core.observing import GIVEN_BACK, Observer, Watcher, observe
from fdbqueue.core.registry import Registry
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import FDBError
from fdbqueue.operate.cli.show import task_row
from fdbqueue.tasks.stored.records import Record, TaskKeys, id_bytes, packed_trace, record_of, record_to_bytes
from tests.fleet.conftest import SOON
from tests.observing.conftest import Notes


class Failing(Observer):
    def call(self, call):
        raise ValueError(f"no call {call.name}")

    def attempt(self, attempt):
        raise ValueError(f"no attempt {attempt.task.id}")

    def committed(self):
        raise ValueError("no commit")

    def failed(self, code):
        raise ValueError(f"no failure {code}")


class FailingAtTheEnd(Observer, Watcher):
    def call(self, call):  # noqa: ARG002  # that of an observer
        return self.ended

    def attempt(self, attempt):  # noqa: ARG002  # that of an observer
        return self

    def ended(self, seen):
        raise ValueError(f"no end of {seen}")

    def left(self):
        raise ValueError("no leaving")


TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def test_each_call_on_a_queue_is_told_once(db, queue, notes):
    queue.put(db, "a")
    queue.put_many(db, ["b", "c"])
    queue.release(db, queue.take(db, 0))
    task, other = queue.take_many(db, 2)
    queue.touch(db, task, 5)
    queue.ack(db, task)
    queue.bury(db, other)
    queue.kick(db, 9)
    queue.delete(db, other.id)
    told = [(name, count) for name, _, _, count in notes.told()]
    assert told == [
        *[("put", 1), ("put", 2), ("take", 1), ("release", 1), ("take", 2)],
        *[("touch", 1), ("ack", 1), ("bury", 1), ("kick", 1), ("delete", 1)],
    ]
    assert {call.queue for call in notes.calls} == {"jobs"}
    assert not any(call.within or call.error for call in notes.calls)
    assert [[done.id for done in call.tasks] for call in notes.calls[-4:-2]] == [[task.id], [other.id]]


def test_a_take_with_two_sessions_is_told_once(db, queue, notes, monkeypatch):
    """The queue's own session has died before the take, which then opens another one."""
    queue.put(db, "a")
    take, outcomes = Takes.wait, iter([UnknownSession(session="ff"), None])

    def first_without_session(*given):
        error = next(outcomes)
        if error is not None:
            raise error
        return take(*given)

    monkeypatch.setattr(Takes, "wait", first_without_session)
    assert queue.take(db, 1).data == "a"
    told = [(call.name, call.count, call.waits, call.error) for call in notes.calls]
    assert told == [("put", 1, False, None), ("take", 1, True, None)]


def test_a_call_in_a_transaction_is_told_as_part_of_it(db, space, queue, notes):
    session = Session(db, root=space)

    @transactional
    def work(tr):
        queue.put(tr, "a")
        queue.ack(tr, queue.take(tr, session=session))

    work(db)
    assert notes.told() == [("put", "jobs", True, 1), ("take", "jobs", True, 1), ("ack", "jobs", True, 1)]


def test_calls_on_a_plain_queue_are_told(db, space, notes):
    items = Queue.named(db, "items", root=space)

    @transactional
    def work(tr):
        items.enqueue(tr, 1)
        return items.dequeue(tr), items.dequeue_many(tr, 3)

    items.enqueue_many(db, [2, 3])
    assert (items.dequeue(db), work(db)) == (2, (3, [1]))
    assert items.dequeue_many(db, 2) == []
    assert items.dequeue(db, timeout=0.01) is None
    assert notes.told() == [
        *[("enqueue", "items", False, 2), ("dequeue", "items", False, 1)],
        *[("enqueue", "items", True, 1), ("dequeue", "items", True, 1), ("dequeue", "items", True, 1)],
        *[("dequeue", "items", False, 0), ("dequeue", "items", False, 0)],
    ]
    assert [call.waits for call in notes.calls] == [False] * 6 + [True]


def test_a_take_that_fails_counts_no_item(db, space, notes):
    items, spool = Queue.named(db, "items", root=space), PersistentQueue(db, "spool", root=space)
    stop = threading.Event()
    stop.set()
    for timeout in (0, 1):
        with pytest.raises(WaitStopped):
            items.dequeue(db, timeout=timeout, stop=stop)
    with pytest.raises(WaitStopped):
        spool.get(stop=stop)
    Registry(space).drop(db, "items")
    with pytest.raises(QueueDropped):
        transactional(items.dequeue)(db)
    assert [(call.name, call.count) for call in notes.calls] == [
        *[("dequeue", 0)] * 2,
        ("get", 0),
        ("dequeue", 0),
    ]


def test_the_error_of_a_call_is_told(db, queue, notes):
    task = queue.put(db, "a")
    with pytest.raises(NotTaken):
        queue.ack(db, task.id)
    assert queue.take(db, 0.01) is not None
    assert queue.take(db, 0.01) is None
    ack, _, empty = notes.calls[1:]
    assert (ack.name, ack.task_id, type(ack.error)) == ("ack", task.id, NotTaken)
    assert (empty.name, empty.count, empty.waits, empty.error) == ("take", 0, True, None)
    assert empty.seconds > 0


def test_commits_and_failed_transactions_are_told(db, space, notes):
    tries = []

    @transactional
    def conflicting(tr):
        tr.get(space.pack(("a",))).wait()
        tr.set(space.pack(("b",)), b"")
        if not tries:
            tries.append(1)
            db.set(space.pack(("a",)), b"")

    before = db.counters.commits
    conflicting(db)
    assert (notes.commits, notes.codes) == (1, [1020])
    assert db.counters.commits == before + 1


def test_each_of_several_observers_is_told(db, space, queue, notes):
    """Such as metrics and traces at once."""
    second = Notes()
    with observe(second):
        queue.put(db, "a")
        Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
        observing.tell_failed(1020)
    assert [call.name for call in notes.calls if call.count] == ["put", "take", "ack"]
    assert (second.told(), second.codes) == (notes.told(), [1020])
    assert [attempt.outcome for attempt in second.attempts + notes.attempts] == ["succeeded"] * 2
    assert second.commits == notes.commits > 0


def test_an_observer_that_fails_changes_nothing(db, space, queue, caplog, monkeypatch):
    monkeypatch.setattr(observing, "_troubles", Troubles(RealRuntime()))  # each is told once a minute

    with observe(Failing()), observe(FailingAtTheEnd()), caplog.at_level(logging.ERROR, "fdbqueue"):
        queue.put(db, "a")
        Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
        observing.tell_failed(1020)
    assert queue.statistics(db)["tasks"]["done"] == 1
    told = {record.getMessage() for record in caplog.records}
    assert any("an observer, Failing, has failed: ValueError: no commit" in text for text in told)
    assert any("an observer, FailingAtTheEnd, has failed: ValueError: no end of" in text for text in told)


def test_an_observer_hears_of_an_end_in_spite_of_others(db, queue, notes, monkeypatch):
    """The one that fails began later, so it is told first."""
    monkeypatch.setattr(observing, "_troubles", Troubles(RealRuntime()))
    with observe(FailingAtTheEnd()):
        queue.put(db, "a")
    assert [call.name for call in notes.calls] == ["put"]


def test_an_observer_hears_of_a_begin_in_spite_of_others(db, space, queue, monkeypatch):
    """The one that fails began earlier, so it is told first, of commits and failures, too."""
    monkeypatch.setattr(observing, "_troubles", Troubles(RealRuntime()))
    second = Notes()
    with observe(Failing()), observe(second):
        queue.put(db, "a")
        commits = second.commits
        Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
        observing.tell_failed(1020)
    assert [call.name for call in second.calls if call.count] == ["put", "take", "ack"]
    assert (commits, len(second.attempts), second.codes) == (1, 1, [1020])


def test_an_observer_hears_of_a_leaving_in_spite_of_others(db, space, queue, monkeypatch):
    """The one that fails began later, so it is told first. A tracer ends the span of the thread here."""
    monkeypatch.setattr(observing, "_troubles", Troubles(RealRuntime()))
    left = []

    class Leaving(Observer, Watcher):
        def attempt(self, attempt):  # noqa: ARG002  # that of an observer
            return self

        def left(self):
            left.append(1)

    queue.put(db, "a")
    with observe(Leaving()), observe(FailingAtTheEnd()):
        Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
    assert left == [1]


def test_an_observer_is_told_nothing_after_its_end(db, queue, notes):
    with observe(notes):  # a second time: no call is told twice
        queue.put(db, "a")
    queue.put(db, "b")
    assert len(notes.calls) == 1
    assert not observing.observers


def test_without_an_observer_the_seam_is_not_called(db, space, queue):
    """Not by a call, not by an attempt: a look at the empty tuple is all."""
    items, modules = Queue.named(db, "items", root=space), set()

    def note(frame, event, arg):  # noqa: ARG001
        modules.add(Path(frame.f_code.co_filename).name)

    Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        queue.put(db, 1)
        items.enqueue(db, 1)
        items.dequeue(db)
        Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert {"worker.py", "calls.py", "once.py"} <= modules
    assert not {"observing.py", "observed.py"} & modules


def test_a_trace_context_stays_with_its_task(db, queue, notes):
    """Through every state, and in every view of the task."""
    notes.trace = packed_trace(TRACED)
    put = queue.put(db, "x" * 1_000)
    queue.release(db, queue.take(db, 0))
    queue.bury(db, queue.take(db, 0))
    queue.kick(db, 1)
    taken = queue.take(db, 0)
    views = [put, queue.peek(db, put), *queue.tasks(db, "t", 1), taken, queue.ack(db, taken)]
    assert [view.trace for view in views] == [TRACED] * 5
    assert task_row(taken, queue.options)["trace"] == TRACED


def test_a_put_in_place_of_another_brings_its_trace_context(db, queue, notes):
    queue.put(db, "a", unique=1)
    notes.trace = packed_trace(TRACED)
    again = queue.put(db, "b", unique=1, on_conflict="replace")
    assert (again.trace, queue.take(db, 0).trace) == (TRACED, TRACED)


def test_a_task_of_a_transaction_has_its_trace_context(db, queue, notes):
    notes.trace = packed_trace(TRACED)
    transactional(lambda tr: queue.put_many(tr, [1, 2]))(db)
    assert [task.trace for task in queue.take_many(db, 2)] == [TRACED] * 2


def test_without_an_observer_no_trace_context_is_stored(db, queue):
    task = queue.put(db, "a")
    assert task.trace is None
    stored = db[TaskKeys(queue.contents).task(id_bytes(task.id))]
    assert record_of(stored).trace == b""


def test_a_record_of_an_earlier_release_has_no_trace_context(db, queue):
    """It ends before that field."""
    task = queue.put(db, "a")
    key = TaskKeys(queue.contents).task(id_bytes(task.id))
    stored = bytes(db[key])
    fields = msgspec.msgpack.decode(stored)
    shorter = msgspec.msgpack.encode(fields[: Record.__struct_fields__.index("trace")])
    db.set(key, shorter)
    assert queue.peek(db, task) == task
    assert record_to_bytes(record_of(shorter)) == stored


def test_attempts_are_told_with_their_outcomes(db, space, queue, notes):
    queue.put_many(db, ["good", "bad"])

    def handler(task):
        if task.data == "bad":
            raise ValueError("odd")

    Worker(db, queue, handler, threads=2, backoff=SOON, attempts=2, root=space).run(until_empty=True)
    told = sorted((attempt.task.data, attempt.task.attempts, attempt.outcome) for attempt in notes.attempts)
    assert told == [("bad", 1, "retried"), ("bad", 2, "buried"), ("good", 1, "succeeded")]
    waits = {(attempt.task.data, attempt.task.attempts): attempt.wait_s for attempt in notes.attempts}
    assert waits["good", 1] >= 0
    assert waits["bad", 2] is None  # the time of its release is unknown
    assert [type(attempt.error) for attempt in notes.attempts if attempt.error] == [ValueError] * 2
    assert {attempt.queue for attempt in notes.attempts} == {"jobs"}


def test_an_attempt_that_overruns_is_told_at_its_timeout(db, space, queue, notes):
    """While its handler still hangs."""
    told, go_on = threading.Event(), threading.Event()
    queue.put(db, "slow")
    hooks = Hooks(buried=lambda _: told.set())
    worker = Worker(
        db,
        queue,
        lambda _: go_on.wait(60),
        threads=1,
        timeout_s=0.05,
        attempts=1,
        hooks=hooks,
        root=space,
    )
    worker.start()
    assert told.wait(60)
    outcomes = [attempt.outcome for attempt in notes.attempts]
    go_on.set()
    worker.stop()
    assert worker.join(60)
    assert outcomes == ["buried"]
    assert [attempt.outcome for attempt in notes.attempts] == ["buried"]


def test_an_attempt_that_a_stop_cuts_short_is_told(db, space, queue, notes):
    began, go_on = threading.Event(), threading.Event()

    def handler(_):
        began.set()
        go_on.wait(60)

    queue.put(db, "slow")
    worker = Worker(db, queue, handler, threads=1, root=space)
    worker.start()
    assert began.wait(60)
    worker.stop(at_once=True)
    assert worker.join(60)
    assert [attempt.outcome for attempt in notes.attempts] == [GIVEN_BACK]
    go_on.set()


def test_observed_calls_raise_as_others_do(db, space, notes):
    """The stand-ins for services hide no argument."""
    queue = TaskQueue.create(db, "small", "limfifottl", capacity=1, root=space)
    queue.put(db, "a", timeout=1)
    with pytest.raises(fdbqueue.QueueFull):
        queue.put(db, "b")
    with pytest.raises(fdbqueue.QueueFull):
        transactional(lambda tr: queue.put(tr, "b"))(db)
    stop = db.runtime.event()
    stop.set()
    queue.take(db, 0)
    with pytest.raises(fdbqueue.WaitStopped):
        queue.take(db, 60, stop=stop)
    errors = [type(call.error) for call in notes.calls if call.error is not None]
    assert all(issubclass(error, FdbQueueError) for error in errors)
    assert len(errors) == 3
    assert FDBError not in errors


def test_calls_on_a_persistent_queue_are_told(db, space, notes):
    notes.trace = packed_trace(TRACED)
    with PersistentQueue(db, "saved", maxsize=2, root=space) as saved:
        saved.put("a")
        saved.ack(saved.get())
        with saved.transaction():
            saved.put("b")
        with pytest.raises(queue_module.Empty):
            saved.get(block=bool(saved.get() != "b"))
        saved.put("c")
        saved.put("d")
        with pytest.raises(queue_module.Full):
            saved.put("e", block=False)
        waiting = TaskQueue.open(db, "saved", root=space).tasks(db, "r", 9)
    assert [(call.name, call.within, call.count) for call in notes.calls] == [
        *[("put", False, 1), ("get", False, 1), ("ack", False, 1), ("put", True, 1), ("get", False, 1)],
        *[("get", False, 0), ("put", False, 1), ("put", False, 1), ("put", False, 0)],
    ]
    assert [task.trace for task in waiting] == [TRACED] * 2


def test_calls_on_a_fair_queue_are_told(db, space, notes):
    for capacity in (None, 9):
        fair = FairQueue(
            space["fair", str(capacity)], key=lambda item: item[0], capacity=capacity, root=space
        )
        fair.put(db, "a1")
        transactional(lambda tr, fair=fair: (fair.put(tr, "a2"), fair.take_item(tr)))(db)
        assert [fair.get(db), fair.get(db)] == ["a2", None]
    assert notes.told() == 2 * [
        *[("put", "", False, 1), ("put", "", True, 1), ("take", "", True, 1)],
        *[("take", "", False, 1), ("take", "", False, 0)],
    ]
