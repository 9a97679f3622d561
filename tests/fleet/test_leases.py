"""Leases while a handler runs: renewed, lost, or late. And the end of a worker."""

import threading
import time
from dataclasses import replace

import pytest

from fdbqueue import Done, Hooks, TaskQueue, Worker, workers
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    EffectTooLarge,
    EffectTooSlow,
    InvalidArgument,
    LeaseLost,
    QueueNotFound,
    WorkerUsed,
)
from fdbqueue.embedded import FDBError
from fdbqueue.fleet.feed import Feed
from fdbqueue.fleet.pool import ThreadPool
from fdbqueue.fleet.settling import Settling, Telling
from tests.fleet.conftest import SOON, Beaten, working
from tests.support import wait_until

LATE = {"threads": 1, "timeout_s": 0.1, "attempts": 1}
TTR_S = 4.0  # a heartbeat comes each third of it; the rest is for a busy machine


@pytest.fixture
def short(db, space):
    """A queue with a short ttr."""
    return TaskQueue.create(db, "short", "fifottl", ttr=TTR_S, root=space)


class Gate:
    """A handler that reports its start, and ends when the test opens it."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.task = None

    def __call__(self, task):
        self.task = task
        self.begun.set()
        assert self.may_end.wait(20)


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.may_end.set()


class Told:
    """Hooks that record events; the test can wait for one."""

    def __init__(self):
        self.names, self._changed = [], threading.Condition()
        self.hooks = Hooks(succeeded=self, retried=self, buried=self, lease_lost=self)

    def __call__(self, event):
        with self._changed:
            self.names.append(event.name)
            self._changed.notify_all()

    def wait_for(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.names) >= count, 20), self.names
        return self.names


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def renewals(monkeypatch):
    """The times at which leases were renewed."""
    times, renew = [], TaskQueue.renew

    def noted(*args):
        times.append(time.monotonic())
        return renew(*args)

    monkeypatch.setattr(TaskQueue, "renew", noted)
    return times


def test_a_lease_is_renewed_while_its_handler_runs(db, short, gate, told, renewals):
    """A renewal keeps the ttr. Leases of many times their ttr are in tests/fleet/test_outages.py."""
    short.put(db, "x")
    with working(Worker(db, short, gate, hooks=told.hooks)):
        gate.begun.wait(20)
        wait_until(lambda: len(renewals) >= 2)
        assert not gate.task.lost
        gate.may_end.set()
        assert told.wait_for(1) == ["succeeded"]
    assert short.statistics(db)["calls"]["ttr"] == 0


@pytest.mark.parametrize("how", ["bury", "delete", "release_all"])
def test_a_handler_learns_that_its_lease_is_lost(db, short, gate, told, how):
    """Its next `check` raises, and its late return changes nothing."""
    checked = []

    def handler(task):
        if task.attempts == 1:
            gate(task)
            with pytest.raises(LeaseLost):
                task.check()
            checked.append(task.lost)

    id_ = short.put(db, "x").id
    with working(Worker(db, short, handler, hooks=told.hooks)) as worker:
        gate.begun.wait(20)
        if how == "release_all":
            short.pause(db)
            short.release_all(db)
        else:
            getattr(short, how)(db, id_)
        wait_until(lambda: gate.task.lost)
        gate.may_end.set()
        assert told.wait_for(1) == ["lease_lost"]
        worker.stop(at_once=True)
    assert (checked, short.statistics(db)["calls"]["ack"]) == ([True], 0)


@pytest.mark.commits_by_hand
def test_a_slow_hook_renews_no_lease_of_an_acked_task(db, short, gate, renewals):
    """The ack has ended the lease."""
    short.put(db, "x")
    with working(Worker(db, short, lambda _: None, hooks=Hooks(succeeded=gate))):
        gate.begun.wait(20)
        time.sleep(0.8 * TTR_S)  # two heartbeats
        gate.may_end.set()
    assert len(renewals) <= 1


def test_a_task_that_arrives_too_late_is_not_begun(db, queue, told, monkeypatch):
    """The late take is no attempt; a handler gets the task from the next one."""
    seen, late, take = [], [True], Feed.take

    def take_late(feed, *args):
        found = take(feed, *args)
        if found and late and late.pop():
            return [(q, replace(task, until=time.time() - 1)) for q, task in found]
        return found

    monkeypatch.setattr(Feed, "take", take_late)
    queue.put(db, "x")
    handler = lambda task: seen.append((task.lost, task.failures))  # noqa: E731
    with working(Worker(db, queue, handler, hooks=told.hooks)):
        assert told.wait_for(1) == ["succeeded"]
    assert (seen, late) == ([(False, 0)], [])


def test_a_hanging_handler_costs_an_attempt_but_no_thread(db, queue, told):
    """With a timeout, another thread takes its place, and the failure has its stack."""
    hang, done = threading.Event(), []

    def handler(task):
        if task.data == "hangs":
            hang.wait(20)
        done.append(task.data)

    id_ = queue.put(db, "hangs").id
    queue.put(db, "runs")
    worker = Worker(db, queue, handler, hooks=told.hooks, backoff=SOON, **LATE)
    worker.run(until_empty=True)
    assert (told.names, done, worker.status().overrun) == (["buried", "succeeded"], ["runs"], 1)
    [failure] = queue.failures(db, id_)
    assert failure.error == "Timeout"
    assert "hang.wait(20)" in failure.detail
    hang.set()


def test_a_thread_that_was_replaced_ends_without_an_outcome(db, queue, told):
    hang = threading.Event()
    queue.put(db, "hangs")
    with working(Worker(db, queue, lambda _: hang.wait(20), hooks=told.hooks, **LATE)):
        told.wait_for(1)
        hang.set()
        queue.put(db, "again")
        assert told.wait_for(2) == ["buried", "succeeded"]


@pytest.fixture
def timeout_is_over(monkeypatch):
    """Set as soon as the heartbeat has claimed a hanging attempt, which then goes first: it ends at once."""
    is_over, ended, replace_thread, leave = (
        threading.Event(),
        threading.Event(),
        ThreadPool.replace,
        Telling.left,
    )

    def replace_late(pool, *arguments):
        is_over.set()
        assert ended.wait(20)
        time.sleep(0.05)  # the thread becomes idle
        replace_thread(pool, *arguments)

    def leave_and_tell(telling, hold):
        leave(telling, hold)
        ended.set()

    monkeypatch.setattr(ThreadPool, "replace", replace_late)
    monkeypatch.setattr(Telling, "left", leave_and_tell)
    return is_over


def test_a_handler_that_ends_at_its_timeout_adds_no_thread(db, queue, told, timeout_is_over):
    """With a thread too many, the worker would never count all of them as idle."""
    queue.put(db, "x")
    handler = lambda _: timeout_is_over.wait(20)  # noqa: E731
    Worker(db, queue, handler, hooks=told.hooks, **LATE).run(until_empty=True)
    assert told.names == ["buried"]


def test_a_transaction_that_ends_at_its_timeout_writes_nothing(db, queue, told, space, timeout_is_over):
    """Its attempt counts as failed, so it must not commit."""

    def handler(tr, _):
        assert timeout_is_over.wait(20)
        tr.set(space["effect"].key(), b"")

    queue.put(db, "x")
    Worker(db, queue, handler, hooks=told.hooks, transactional=True, **LATE).run(until_empty=True)
    assert (told.names, db[space["effect"].key()]) == (["buried"], None)


@pytest.mark.commits_by_hand
def test_a_transaction_that_hangs_in_its_second_try_is_ended(db, queue, told, space):
    """After a conflict, as in its first try."""
    hang, key, tries = threading.Event(), space["contended"].key(), []

    def handler(tr, _):
        tries.append(tr.get(key).present())
        db[key] = b""
        if len(tries) > 1:
            hang.wait(20)
        tr.set(key, b"")

    queue.put(db, "x")
    Worker(db, queue, handler, hooks=told.hooks, transactional=True, **LATE).run(until_empty=True)
    hang.set()
    assert (told.names, tries) == (["buried"], [False, True])


def test_a_handler_that_ends_during_its_failure_is_not_settled(db, queue, told, monkeypatch):
    """Otherwise the next suspect would begin beside the commit of this one."""
    fails, left, settled = threading.Event(), threading.Event(), []
    fail, leave = Settling.fail, Telling.left

    def fail_late(settling, hold, failed):
        fails.set()
        assert left.wait(20)
        settled.append(hold.settled)
        return fail(settling, hold, failed)

    def leave_and_tell(telling, hold):
        leave(telling, hold)
        left.set()

    monkeypatch.setattr(Settling, "fail", fail_late)
    monkeypatch.setattr(Telling, "left", leave_and_tell)
    queue.put(db, "x")
    Worker(db, queue, lambda _: fails.wait(20), hooks=told.hooks, **LATE).run(until_empty=True)
    assert (told.names, settled) == (["buried"], [False])


@pytest.mark.parametrize("transactional", [False, True])
def test_a_task_acked_by_its_handler_is_not_lost_at_a_timeout(db, queue, told, transactional):
    hang = threading.Event()

    def handler(*arguments):
        queue.ack(db, arguments[-1])
        hang.wait(20)

    queue.put(db, "acked")
    worker = Worker(db, queue, handler, hooks=told.hooks, transactional=transactional, **LATE)
    with working(worker):
        assert told.wait_for(1) == ["succeeded"]
        worker.stop(at_once=True)
        hang.set()
    assert (told.names, worker.status().tally.lost) == (["succeeded"], 0)


@pytest.mark.commits_by_hand
def test_a_heartbeat_excuses_all_attempts_before_its_end(db, queue, space):
    """Whatever their number is."""
    owing = Beaten(db, space, [queue], 100, owes=True)
    owing.heartbeat.start()
    owing.heartbeat.end(20)
    assert queue.statistics(db)["tasks"]["ready"] == 100


def test_a_heartbeat_excuses_all_attempts(db, queue, space):
    """A few per beat, without being woken for each."""
    owing = Beaten(db, space, [queue], 100, owes=True)
    owing.heartbeat.start()
    wait_until(lambda: queue.statistics(db)["tasks"]["ready"] == 100)
    owing.heartbeat.end(20)


def test_a_lease_wakes_a_heartbeat_that_would_sleep_longer(db, short, space):
    beaten = Beaten(db, space, [])
    beaten.heartbeat._wakes_at = beaten.heartbeat._tick()
    beaten.take(short, 1, beaten.session)
    assert beaten.heartbeat._woken.is_set()


def test_a_lost_lease_wakes_no_heartbeat(db, queue, space):
    """Its handler may go on for an hour, and there is nothing to renew."""
    beaten = Beaten(db, space, [queue])
    beaten.holds[0].take_away()
    assert beaten.renew_all() > db.runtime.monotonic() + 10


def test_a_renewal_begins_with_its_question(db, queue, space, monkeypatch):
    """A silence of the database that ends with the answer is one of this lease."""
    beaten, renew, asked = Beaten(db, space, [queue]), TaskQueue.renew, []

    def renew_late(queue, tr, tasks):
        asked.append(db.runtime.now())
        return renew(queue, tr, tasks)

    monkeypatch.setattr(TaskQueue, "renew", renew_late)
    beaten.holds[0].renewed_at = 0.0
    beaten.renew_all()
    assert 0.0 < beaten.holds[0].renewed_at <= asked[0]


@pytest.mark.parametrize(("code", "left"), [(1031, 1), (2101, 0)])
@pytest.mark.commits_by_hand
def test_an_excuse_that_fails_delays_no_other(db, queue, space, monkeypatch, code, left):
    """Nor the chores. If the database was away, the excuse is tried again."""
    owing = Beaten(db, space, [queue], 3, owes=True)
    bad, excuse = owing.holds[0].task.id, TaskQueue.excuse

    def fail_for_one(queue, tr, task):
        if task.id == bad:
            raise FDBError(code)
        return excuse(queue, tr, task)

    monkeypatch.setattr(TaskQueue, "excuse", fail_for_one)
    owing.heartbeat._tick()
    assert owing.chores == 1
    owing.heartbeat._tick()
    assert (owing.chores, queue.statistics(db)["tasks"]["taken"]) == (2, 1)
    assert len(owing.heartbeat._owed) == left


@pytest.mark.parametrize("threads", [1, 3])
def test_a_stop_lets_running_handlers_finish(db, queue, gate, told, threads):
    """Idle threads do not end the wait. The stopping worker takes no more tasks."""
    queue.put(db, 1)
    with working(Worker(db, queue, gate, threads=threads, hooks=told.hooks)) as worker:
        gate.begun.wait(20)
        worker.stop()
        queue.put(db, 2)
        assert not worker.join(0.2)
        assert worker.status().state == "stopping"
        gate.may_end.set()
    assert (told.names, queue.statistics(db)["tasks"]["ready"]) == (["succeeded"], 1)


@pytest.mark.parametrize("how", [{"grace_s": 0.1}, {"at_once": True}])
def test_a_task_that_outlasts_the_grace_is_released(db, queue, gate, told, how):
    """No failure is counted, and the late return of its handler changes nothing."""
    id_ = queue.put(db, 1).id
    worker = Worker(db, queue, gate, hooks=told.hooks, grace_s=how.get("grace_s", 60))
    worker.start()
    gate.begun.wait(20)
    worker.stop(at_once=how.get("at_once", False))
    assert worker.join(10)
    task = queue.peek(db, id_)
    assert (task.state.value, task.failures, queue.failures(db, id_)) == ("r", 0, [])
    assert gate.task.lost
    gate.may_end.set()
    assert queue.statistics(db)["calls"]["ack"] == 0


@pytest.mark.parametrize("how", [{}, {"at_once": True}])
def test_a_worker_with_busy_threads_stops_in_time(db, queue, gate, told, how):
    """The grace begins at the stop, not when a thread is idle again."""
    worker = Worker(
        db, queue, gate, threads=1, grace_s=0 if not how else 30, attempts=float("inf"), hooks=told.hooks
    )
    queue.put(db, "x")
    worker.start()
    assert gate.begun.wait(20)
    time.sleep(0.1)  # it waits for an idle thread
    worker.stop(**how)
    assert worker.join(10)
    assert queue.statistics(db)["tasks"]["ready"] == 1


def test_an_idle_worker_stops_at_once(db, queue, space):
    """A worker that waits in lines stops at once, too, and its requests leave them."""
    other = TaskQueue.create(db, "other", root=space)
    for queues in ([queue], [queue, other]):
        worker = Worker(db, queues, print)
        worker.start()
        time.sleep(0.3)
        began = time.monotonic()
        worker.stop()
        assert worker.join(20)
        assert time.monotonic() - began < limits.WORKER_WAIT_S / 2
        queue.drop(db) if queues == [queue, other] else None


def test_a_put_wakes_an_idle_worker_of_several_queues(db, queue, space, told, without_looks, monkeypatch):  # noqa: ARG001
    monkeypatch.setattr(limits, "WORKER_WAIT_S", 600.0)
    other = TaskQueue.create(db, "other", root=space)
    with working(Worker(db, {"jobs": 2, "other": 1}, lambda _: None, hooks=told.hooks, root=space)):
        for number in range(1, 5):
            (queue, other)[number % 2].put(db, number)
            assert told.wait_for(number)[-1] == "succeeded"


def test_workers_are_listed_while_they_live(db, queue, space, gate):
    id_ = queue.put(db, 1).id
    with working(Worker(db, queue, gate, threads=3, root=space)):
        wait_until(lambda: any(seen.running for seen in workers(db, "jobs", root=space)))
        [seen] = workers(db, root=space)
        assert (seen.queues, seen.threads, [task.id for task in seen.running]) == (("jobs",), 3, [id_])
        assert workers(db, "another", root=space) == []
        gate.may_end.set()
    assert workers(db, root=space) == []


def test_a_presence_lists_the_queues_that_it_has_room_for(db, space):
    """It has the number of the other queues, because a value has 100,000 bytes at most."""
    queues = [TaskQueue.create(db, f"{number:03}" + 490 * "\n", root=space) for number in range(210)]
    worker = Worker(db, queues[:1], print, root=space)
    worker._queues = [(queue, 1) for queue in queues]  # so the worker does not wait in all lines
    with working(worker):
        wait_until(lambda: workers(db, root=space))
        [seen] = workers(db, root=space)
    assert seen.queues == tuple(queue.name for queue in queues[: len(seen.queues)])
    assert 0 < len(seen.queues) < len(seen.queues) + seen.more_queues == 210


def test_a_transactional_handler_has_its_effect_with_the_ack(db, queue, work, space):
    """Once, whatever the number of tries; not at all if the handler fails."""

    def handler(tr, task):
        tr.add(space["n"][task.data].key(), b"\x01")
        if task.attempts == 1 and task.data == 3:
            raise ValueError("half-way")

    queue.put_many(db, range(5))
    told = work(handler, transactional=True)
    assert sorted(told) == [("retried", 3), *(("succeeded", n) for n in range(5))]
    assert [db[space["n"][n].key()] for n in range(5)] == [b"\x01"] * 5


def test_a_transactional_handler_decides_anew_at_each_try(db, queue, work, space):
    """Its first try releases the task, and conflicts; the second one leaves the ack to the worker."""
    tries, seen = [], space["seen"].key()

    def handler(tr, task):
        tries.append(task.attempts)
        if len(tries) == 1:
            tr[seen].wait()
            queue.release(tr, task)
            db[seen] = b""

    queue.put(db, 1)
    assert work(handler, transactional=True) == [("succeeded", 1)]
    assert (tries, queue.statistics(db)["tasks"]["done"]) == ([1, 1], 1)


def test_a_transactional_handler_that_is_too_slow_fails(db, queue, work, monkeypatch):
    monkeypatch.setattr("fdbqueue.core.limits.EFFECT_MAX_S", 0.05)
    id_ = queue.put(db, 1).id
    assert work(lambda *_: time.sleep(0.1), transactional=True, attempts=1) == [("buried", 1)]
    [failure] = queue.failures(db, id_)
    assert failure.error == EffectTooSlow.__name__
    assert "commits none after 5 s" in failure.message


def test_a_transactional_handler_that_writes_too_much_fails(db, queue, work, space):
    def handler(tr, _):
        for n in range(100):
            tr[space["n"][n].key()] = bytes(92_000)

    id_ = queue.put(db, 1).id
    assert work(handler, transactional=True, attempts=1) == [("buried", 1)]
    [failure] = queue.failures(db, id_)
    assert failure.error == EffectTooLarge.__name__
    assert "above 10,000,000" in failure.message


def test_a_transactional_handler_may_raise_done_with_an_effect(db, queue, work, space):
    def handler(tr, _):
        tr.add(space["n"].key(), b"\x01")
        raise Done(lambda tr: tr.add(space["n"].key(), b"\x01"))

    queue.put(db, 1)
    assert work(handler, transactional=True) == [("succeeded", 1)]
    assert db[space["n"].key()] == b"\x02"


@pytest.mark.parametrize(
    "bad",
    [
        {"threads": 0},
        {"threads": 1.5},
        {"attempts": 0},
        {"attempts": True},
        {"attempts": 1_000_001},
        {"backoff": 3},
        {"timeout_s": -1},
        {"grace_s": "long"},
        {"queues": []},
        {"queues": {"jobs": 0}},
        {"handler": "no function"},
    ],
)
def test_wrong_arguments_are_refused_before_a_take(db, queue, space, bad):
    queue.put(db, 1)
    with pytest.raises(InvalidArgument):
        Worker(db, **{"queues": "jobs", "handler": print, "root": space, **bad})
    assert queue.statistics(db)["calls"]["take"] == 0


@pytest.mark.usefixtures("queue")
def test_a_missing_queue_is_refused(db, space):
    with pytest.raises(QueueNotFound):
        Worker(db, ["jobs", "missing"], print, root=space)


def test_a_worker_ends_when_its_last_queue_is_dropped(db, queue):
    worker = Worker(db, queue, print)
    worker.start()
    queue._shape.registry.drop(db, "jobs")  # the `drop` of the queue refuses while a call waits in its line
    assert worker.join(20)
    assert isinstance(worker.error, QueueNotFound)


@pytest.mark.parametrize("until_empty", [True, False])
def test_a_worker_goes_on_without_a_queue_that_is_dropped(db, queue, space, told, caplog, until_empty):
    """It logs that, and works until the other queues are empty."""
    other = TaskQueue.create(db, "other", root=space)

    def handler(task):
        if task.queue == "jobs" and task.data == 1:
            other.drop(db)
            queue.put(db, 2)

    queue.put(db, 1)
    worker = Worker(db, [queue, other], handler, threads=1, hooks=told.hooks, root=space)
    worker.start(until_empty=until_empty)
    assert told.wait_for(2) == ["succeeded"] * 2
    if not until_empty:
        wait_until(lambda: "was dropped" in caplog.text)
        worker.stop()
    assert worker.join(20)
    assert (worker.error, worker.emptied) == (None, until_empty)
    assert "going on without the queue 'other': The queue 'other' was dropped" in caplog.text


def test_a_worker_can_run_only_once(db, queue):
    worker = Worker(db, queue, print)
    worker.run(until_empty=True)
    with pytest.raises(WorkerUsed):
        worker.run()
