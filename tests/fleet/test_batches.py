"""Batches: a handler that gets a list of tasks. On every engine, with real threads."""

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import (
    Bury,
    Done,
    Event,
    Failure,
    Fleet,
    Group,
    Handoff,
    HeldTask,
    Hooks,
    Limit,
    Retry,
    Session,
    Snooze,
    TaskQueue,
    Unavailable,
    Worker,
    aio,
)
from fdbqueue.core.errors import InvalidArgument, LeaseLost
from fdbqueue.fleet import batches as module
from fdbqueue.fleet.pool import ThreadPool
from fdbqueue.tasks.ending import end_in
from tests.fleet.conftest import SOON, working
from tests.support import PATIENCE_S, wait_until

Work = Callable[..., list[tuple[str, Any]]]


@pytest.fixture
def batches(work: Work) -> Callable[..., tuple[list[Any], list[Any]]]:
    """Work in batches until the queue is empty; return the data of each batch, and the outcomes."""

    def run(handler: Callable[..., Any], **options: Any) -> tuple[list[Any], list[Any]]:
        seen: list[Any] = []

        def noted(*given: Any) -> Any:
            seen.append([task.data for task in given[-1]])
            return handler(*given)

        settings = {"batch": 10, "batch_wait_s": 0, "threads": 1, **options}
        told = work(noted, **settings)
        return seen, told

    return run


def ok(*_: Any) -> None:
    """The handler that does nothing."""


def outcomes(told: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, data in told:
        found.setdefault(name, []).append(data)
    return {name: sorted(data) for name, data in found.items()}


def test_a_handler_gets_as_many_tasks_as_there_are(db, queue, batches):
    queue.put_many(db, range(25))
    seen, told = batches(ok)
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert outcomes(told) == {"succeeded": list(range(25))}


def test_a_batch_waits_for_more_tasks(db, queue, space):
    """After its first task; and one that is full does not wait."""
    seen: list[int] = []
    handler = lambda tasks: seen.append(len(tasks))  # noqa: E731
    with working(Worker(db, queue, handler, batch=3, batch_wait_s=PATIENCE_S, root=space)):
        for number in range(3):
            queue.put(db, number)
        wait_until(lambda: seen)
    assert seen == [3]


def test_a_batch_that_waits_goes_back_at_a_stop(db, queue, space):
    """Its tasks have lost no attempt that counts as failed."""
    seen: list[int] = []
    worker = Worker(db, queue, seen.append, batch=3, batch_wait_s=PATIENCE_S, root=space)
    with working(worker):
        queue.put(db, 1)
        wait_until(lambda: queue.statistics(db)["tasks"]["taken"])
    assert queue.tasks(db, "r", 1)[0].failures == 0
    assert not seen


def test_an_exception_fails_all(db, queue, batches):
    """Each by its own count: a task that has failed before is buried earlier."""
    old = queue.put(db, "old")
    queue.release(db, queue.take(db, 0), failure=Failure("Earlier", "it has failed"))

    def fail(_: list[HeldTask]) -> None:
        raise ValueError("odd")

    queue.put(db, "new")
    _, told = batches(fail, attempts=2)
    assert outcomes(told) == {"buried": ["new", "old"], "retried": ["new"]}
    assert [failure.error for failure in queue.failures(db, old)] == ["Earlier", "ValueError"]


def test_a_task_at_its_last_attempt_runs_alone(db, queue, batches):
    """So a task that cannot succeed lets no other be buried."""

    def fail(tasks: list[HeldTask]) -> None:
        if any(task.data == 3 for task in tasks):
            raise ValueError

    queue.put_many(db, range(6))
    seen, told = batches(fail, attempts=2)
    assert outcomes(told)["buried"] == [3]
    assert outcomes(told)["succeeded"] == [0, 1, 2, 4, 5]
    assert sorted(seen[1:]) == [[0], [1], [2], [3], [4], [5]]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_handler_decides_about_single_tasks(db, queue, batches, in_transaction):
    """The rest are acked. The last decision about a task counts."""

    def decide(*given: Any) -> None:
        first = [task for task in given[-1] if task.attempts == 1]
        for task, decision in zip(
            first,
            [
                lambda task: task.fail(ValueError("odd")),
                lambda task: task.fail(Retry(0, "busy")),
                lambda task: task.snooze(0),
                lambda task: task.bury("never"),
                lambda task: (task.bury("no"), task.done()),
            ],
            strict=False,
        ):
            decision(task)

    tasks = queue.put_many(db, range(7))
    seen, told = batches(decide, transactional=in_transaction)
    assert seen[0] == list(range(7))
    found = outcomes(told)
    assert (found["retried"], found["snoozed"], found["buried"]) == ([0, 1], [2], [3])
    assert found["succeeded"] == [0, 1, 2, 4, 5, 6]
    assert [failure.message for failure in queue.failures(db, tasks[3])] == ["never"]


def test_a_decision_stands_beside_an_exception(db, queue, batches):
    def handler(tasks: list[HeldTask]) -> None:
        if tasks[0].attempts == 1:
            tasks[0].done()
            tasks[1].bury("no")
            raise ValueError

    queue.put_many(db, range(4))
    _, told = batches(handler)
    assert outcomes(told) == {"succeeded": [0, 2, 3], "buried": [1], "retried": [2, 3]}


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [(Snooze(0), "snoozed"), (Retry(0), "retried"), (Bury("no"), "buried"), (Done(), "succeeded")],
)
def test_a_raised_verdict_is_for_all(db, queue, batches, verdict, outcome):
    def handler(tasks: list[HeldTask]) -> None:
        if tasks[0].attempts == 1:
            raise verdict

    queue.put_many(db, range(3))
    _, told = batches(handler)
    assert told[:3] == [(outcome, 0), (outcome, 1), (outcome, 2)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_raised_handoff_hands_all_off(db, queue, space, count, in_transaction):
    """Each waits for the outside, which completes it."""
    told: list[tuple[str, Any]] = []
    note = lambda event: told.append((event.name, event.task.data))  # noqa: E731

    def complete(event: Event) -> None:
        note(event)
        queue.complete(db, event.task.id)

    def handler(*_: Any) -> None:
        raise Handoff(PATIENCE_S, "a payment")

    queue.put_many(db, range(count))
    hooks = Hooks(handed_off=complete, snoozed=note, lease_lost=note)
    worker = Worker(
        db,
        queue,
        handler,
        batch=9,
        batch_wait_s=0,
        transactional=in_transaction,
        hooks=hooks,
        root=space,
    )
    hooked: list[bool] = []
    worker.start(until_empty=True)
    hooked.append(worker.join(PATIENCE_S / 2))
    worker.stop(at_once=True)
    assert worker.join(PATIENCE_S)
    assert (hooked, sorted(told)) == ([True], [("handed_off", n) for n in range(count)])
    assert queue.statistics(db)["ends"]["acked"] == count


def test_an_effect_that_raises_not_taken_commits_nothing(db, queue, space):
    """The ack and the earlier writes of the effect are gone."""
    key, told = space["effects"].key(), list[tuple[str, Any]]()
    note = lambda event: told.append((event.name, event.task.data))  # noqa: E731
    other = TaskQueue.create(db, "other", root=space)
    idle = other.put(db, "idle")

    def effect(tr: Any) -> None:
        tr.add(key, b"\x01")
        other.ack(tr, idle)

    def handler(tasks: list[HeldTask]) -> None:
        for task in tasks:
            if task.data == 1:
                task.done(effect=effect)
        worker.stop()

    queue.put_many(db, range(3))
    hooks = Hooks(succeeded=note, lease_lost=note)
    worker = Worker(db, queue, handler, batch=9, batch_wait_s=0, hooks=hooks, root=space)
    worker.run()
    assert outcomes(told) == {"succeeded": [0, 2], "lease_lost": [1]}
    assert db[key] is None
    assert queue.statistics(db)["ends"]["acked"] == 2


def test_an_effect_belongs_to_one_task(db, queue, batches, space):
    """It commits with the ack of its task; a raised effect, of all of them, is refused."""
    key = space["effects"].key()

    def handler(tasks: list[HeldTask]) -> None:
        if tasks[0].attempts == 1:
            raise Done(lambda tr: tr.add(key, b"\x01"))
        for task in tasks:
            task.done(effect=lambda tr: tr.add(key, b"\x01"))

    ids = queue.put_many(db, range(3))
    histories: list[str] = []

    def noted(tasks: list[HeldTask]) -> None:
        histories.extend(failure.message for task in tasks for failure in queue.failures(db, task))
        handler(tasks)

    _, told = batches(noted)
    assert outcomes(told) == {"retried": [0, 1, 2], "succeeded": [0, 1, 2]}
    assert len(ids) == db[key][0]
    assert "task.done(effect=...)" in histories[0]


def test_a_failing_effect_fails_its_own_task_only(db, queue, batches):
    def fail(_: Any) -> None:
        raise ValueError

    def handler(tasks: list[HeldTask]) -> None:
        for task in tasks:
            if task.data == 1:
                task.done(effect=fail)

    queue.put_many(db, range(3))
    _, told = batches(handler, attempts=1)
    assert outcomes(told) == {"succeeded": [0, 2], "buried": [1]}


def test_results_are_stored_by_task(db, queue, batches):
    """`done` gives one task its result, and a returned value is that of the others."""

    def handler(tasks: list[HeldTask]) -> str:
        tasks[0].done({"n": 1})
        return "rest"

    tasks = queue.put_many(db, range(3), result_ttl=60)
    batches(handler)
    assert [queue.result(db, task, 0) for task in tasks] == [{"n": 1}, "rest", "rest"]
    tasks = queue.put_many(db, range(2), result_ttl=60)
    batches(ok)
    assert [queue.result(db, task, 0) for task in tasks] == [None, None]


def test_a_result_that_cannot_be_stored_fails_its_own_task_only(db, queue, batches):
    def handler(tasks: list[HeldTask]) -> None:
        tasks[1].done(object())

    queue.put_many(db, range(3), result_ttl=60)
    _, told = batches(handler, attempts=1)
    assert outcomes(told) == {"succeeded": [0, 2], "buried": [1]}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_lost_lease_fails_no_other_ack(db, queue, batches, in_transaction):
    """A transactional handler gets the tasks that are still held."""
    got: list[list[Any]] = []

    def handler(*given: Any) -> None:
        got.append([task.data for task in given[-1]])
        for task in given[-1]:
            if task.data == 1 and task.attempts == 1:
                queue.bury(db, task.id)

    queue.put_many(db, range(3))
    _, told = batches(handler, transactional=in_transaction)
    assert outcomes(told) == {"succeeded": [0, 2], "lease_lost": [1]}
    assert got[-1] == ([0, 2] if in_transaction else [0, 1, 2])


def test_leaving_because_of_one_task_fails_no_other(db, queue, batches):
    """The others are ready again, and have not failed."""

    def handler(tasks: list[HeldTask]) -> None:
        for task in tasks:
            if task.data == 1:
                queue.bury(db, task.id)
                raise LeaseLost(id=task.id)

    queue.put_many(db, range(3))
    _, told = batches(handler)
    assert outcomes(told) == {"lease_lost": [1], "snoozed": [0, 2], "succeeded": [0, 2]}


def test_a_cancelled_task_ends_and_the_others_go_on(db, queue, space):
    """`task.check()` leaves for one task; the others run again without it."""
    told: list[tuple[str, Any]] = []
    note = lambda event: told.append((event.name, event.task.data))  # noqa: E731
    hooks = Hooks(cancelled=note, succeeded=note, snoozed=note, retried=note)
    tasks = queue.put_many(db, range(3))

    def handler(given: list[HeldTask]) -> None:
        for task in given:
            if task.data == 1:
                queue.cancel(db, tasks[1])
                task.progress(0.5)  # it learns of the cancel
            task.check()

    options: dict[str, Any] = {"batch": 10, "batch_wait_s": 0, "threads": 1, "hooks": hooks, "root": space}
    Worker(db, queue, handler, **options).run(until_empty=True)
    assert outcomes(told) == {"cancelled": [1], "snoozed": [0, 2], "succeeded": [0, 2]}


def test_a_handler_may_end_leases_by_verbs_of_the_queue(db, queue, batches):
    def handler(tasks: list[HeldTask]) -> None:
        queue.bury(db, tasks[0])
        queue.ack(db, tasks[1])

    queue.put_many(db, range(3))
    _, told = batches(handler)
    assert outcomes(told) == {"buried": [0], "succeeded": [1, 2]}
    assert queue.statistics(db)["ends"]["acked"] == 2


def test_writes_of_a_transactional_handler_commit_with_its_acks(db, queue, batches, space):
    key, tries = space["n"].key(), []

    def handler(tr: Any, tasks: list[HeldTask]) -> None:
        tr.add(key, len(tasks).to_bytes(1))
        tries.append(1)
        if len(tries) == 1:
            tasks[0].bury("of a try that did not commit")
            raise ValueError

    queue.put_many(db, range(3))
    _, told = batches(handler, transactional=True)
    assert outcomes(told) == {"retried": [0, 1, 2], "succeeded": [0, 1, 2]}
    assert db[key] == b"\x03"


def test_writes_for_a_lease_that_ends_meanwhile_do_not_commit(db, queue, batches, space, monkeypatch):
    """The others run again without that task."""
    key, acked, ends = space["n"].key(), module._acked, [True]

    def late(batch: Any, tr: Any) -> list[bool]:
        found = acked(batch, tr)
        return [False, *found[1:]] if ends and ends.pop() else found

    def handler(tr: Any, tasks: list[HeldTask]) -> None:
        tr.add(key, len(tasks).to_bytes(1))

    monkeypatch.setattr(module, "_acked", late)
    queue.put_many(db, range(3))
    _, told = batches(handler, transactional=True, session_ttr_s=1)
    assert told[:3] == [("lease_lost", 0), ("snoozed", 1), ("snoozed", 2)]
    assert db[key] == b"\x03"


def test_a_batch_begins_without_the_tasks_that_cannot_be_taken(db, queue, batches, monkeypatch, caplog):
    def away(*_: Any) -> None:
        raise OSError("no second take")

    monkeypatch.setattr("fdbqueue.fleet.feed.Feed.more", away)
    queue.put(db, 1)
    assert batches(ok, batch_wait_s=PATIENCE_S)[0] == [[1]]
    assert "a batch begins with the tasks so far, as no more can be taken" in caplog.text


def test_a_batch_is_of_one_queue(db, queue, space):
    other = TaskQueue.create(db, "other", root=space)
    seen: list[set[str]] = []
    handler = lambda tasks: seen.append({task.queue for task in tasks})  # noqa: E731
    queue.put_many(db, range(20))
    other.put_many(db, range(20))
    options: dict[str, Any] = {"batch": 10, "batch_wait_s": 0, "root": space}
    Worker(db, [queue, other], handler, **options).run(until_empty=True)
    assert all(len(names) == 1 for names in seen)
    assert len(seen) == 4
    assert set.union(*seen) == {"jobs", "other"}


def test_batches_of_two_queues_wait_for_no_other(db, queue, space, monkeypatch):
    """A wait for both queues may end with tasks of each."""
    other = TaskQueue.create(db, "other", root=space)
    seen: list[Any] = []
    handler = lambda tasks: seen.extend(task.data for task in tasks)  # noqa: E731

    def of_both(worker: Any, *_: Any) -> list[Any]:
        return [hold for each, _ in worker._queues for hold in worker._more(each, 1)]

    monkeypatch.setattr(Worker, "_taken", of_both)
    queue.put(db, 1)
    other.put(db, 2)
    wait_s = 10 * PATIENCE_S
    with working(Worker(db, [queue, other], handler, batch=2, batch_wait_s=wait_s, root=space)):
        wait_until(lambda: len(seen) == 2)


@pytest.mark.parametrize("kind", ["utube", "utubettl", "fair", "bag", "limfifottl"])
def test_a_batch_of_every_kind(db, space, kind):
    """With task keys, at most `key_concurrency` of one key run at a time."""
    keyed = kind in ("utube", "utubettl", "fair")
    q, sizes = TaskQueue.create(db, "kind", kind, root=space), []
    keys = []

    def handler(tasks: list[HeldTask]) -> None:
        sizes.append(len(tasks))
        keys.extend([sorted(task.key for task in tasks)] if keyed else [])

    for number in range(6):
        q.put(db, number, **({"key": number % 3} if keyed else {}))
    Worker(db, q, handler, batch=10, batch_wait_s=0, threads=1, root=space).run(until_empty=True)
    assert sum(sizes) == 6
    if kind.startswith("utube"):
        assert keys == [[0, 1, 2], [0, 1, 2]]


def test_a_limit_holds_for_the_tasks_of_batches(db, space):
    Limit.set(db, "two", slots=2, root=space)
    q, sizes = TaskQueue.create(db, "limited", limits=["two"], root=space), []
    q.put_many(db, range(6))
    handler = lambda tasks: sizes.append(len(tasks))  # noqa: E731
    Worker(db, q, handler, batch=10, batch_wait_s=0, threads=3, root=space).run(until_empty=True)
    assert sum(sizes) == 6
    assert max(sizes) <= 2


def test_batches_of_a_queue_with_partitions(db, space):
    q, seen = TaskQueue.create(db, "parts", partitions=3, root=space), []
    for number in range(12):
        q.put(db, number)
    handler = lambda tasks: seen.extend(task.data for task in tasks)  # noqa: E731
    Worker(db, q, handler, batch=5, batch_wait_s=0, threads=2, root=space).run(until_empty=True)
    assert sorted(seen) == list(range(12))
    assert q.statistics(db)["ends"]["acked"] == 12


def test_members_of_a_group_end_in_batches(db, queue, space):
    """The task behind the group follows."""
    told: list[Any] = []
    group = Group.create(db, then=(queue, "then"), root=space)
    group.put_many(db, queue, range(4))
    group.close(db)

    def handler(tasks: list[HeldTask]) -> None:
        told.append(sorted(str(task.data) for task in tasks))

    Worker(db, queue, handler, batch=10, batch_wait_s=0, threads=1, root=space).run(until_empty=True)
    assert told == [["0", "1", "2", "3"], ["then"]]


def test_a_suspect_runs_alone(db, queue, batches, space):
    """It may kill the process that runs it."""
    tasks = queue.put_many(db, range(4))
    session = Session(db, root=space)
    queue.take_many(db, 2, session=session)
    end_in(db, queue._shape, session.id, died=True)
    assert [queue.peek(db, task).orphaned for task in tasks] == [1, 1, 0, 0]
    seen, told = batches(ok)
    assert [0] in seen
    assert [1] in seen
    assert outcomes(told) == {"succeeded": [0, 1, 2, 3]}


def test_a_batch_that_overruns_fails_together(db, queue, space):
    """Decisions that were made before stand, and another thread takes the place of the hanging one."""
    told: list[tuple[str, Any]] = []
    note = lambda event: told.append((event.name, event.task.data))  # noqa: E731
    hooks = Hooks(retried=note, succeeded=note, buried=note)
    go_on = threading.Event()

    def handler(tasks: list[HeldTask]) -> None:
        if tasks[0].attempts == 1:
            tasks[0].done()
            go_on.wait(PATIENCE_S)

    queue.put_many(db, range(3))
    options: dict[str, Any] = {"batch": 10, "batch_wait_s": 0, "threads": 1, "hooks": hooks, "backoff": SOON}
    worker = Worker(db, queue, handler, timeout_s=0.3, root=space, **options)
    worker.run(until_empty=True)
    go_on.set()
    assert outcomes(told) == {"succeeded": [0, 1, 2], "retried": [1, 2]}
    assert worker.status().overrun == 1


@pytest.mark.parametrize("effect", [None, lambda _: None])
def test_a_decision_stands_for_a_single_task_that_overruns(db, queue, space, effect):
    told: list[str] = []
    note = lambda event: told.append(event.name)  # noqa: E731
    go_on = threading.Event()

    def handler(tasks: list[HeldTask]) -> None:
        tasks[0].done(effect=effect)
        worker.stop()
        go_on.wait(PATIENCE_S)

    queue.put(db, 1)
    hooks = Hooks(succeeded=note, retried=note, buried=note, lease_lost=note)
    worker = Worker(db, queue, handler, batch=9, batch_wait_s=0, timeout_s=0.3, hooks=hooks, root=space)
    worker.run()
    go_on.set()
    assert told == ["succeeded"]
    assert queue.statistics(db)["ends"]["acked"] == 1


def test_leases_of_a_batch_are_renewed(db, space):
    q = TaskQueue.create(db, "short", "fifottl", ttr=1, root=space)
    q.put_many(db, range(3))
    renewed = threading.Event()

    def handler(tasks: list[HeldTask]) -> None:
        first = [q.peek(db, task).until for task in tasks]
        wait_until(lambda: all(q.peek(db, t).until > u for t, u in zip(tasks, first, strict=True)))
        renewed.set()

    worker = Worker(db, q, handler, batch=3, batch_wait_s=0, threads=1, root=space)
    worker.run(until_empty=True)
    assert renewed.is_set()
    assert worker.status().tally.done == 3


def test_an_outage_puts_a_batch_off(db, queue, batches, monkeypatch):
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.05)

    def handler(tasks: list[HeldTask]) -> None:
        if tasks[0].attempts == 1:
            raise Unavailable("the server is down")

    tasks = queue.put_many(db, range(3))
    _, told = batches(handler)
    assert outcomes(told) == {"retried": [0, 1, 2], "succeeded": [0, 1, 2]}
    assert len(tasks) == 3


def test_a_batch_that_succeeds_ends_an_outage(db, queue, space, monkeypatch):
    """The next one begins with the first pause again."""
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.05)
    pauses: list[float] = []
    failing = [True, False, True]

    def handler(_: list[HeldTask]) -> None:
        if failing and failing.pop():
            raise Unavailable("the server is down")

    queue.put_many(db, range(2))
    hooks = Hooks(retried=lambda event: pauses.append(event.delay_s))
    Worker(db, queue, handler, batch=1, threads=1, hooks=hooks, root=space).run(until_empty=True)
    assert pauses == [0.05, 0.05]


def test_a_stop_at_once_gives_a_batch_back(db, queue, space):
    began, go_on = threading.Event(), threading.Event()

    def handler(_: list[HeldTask]) -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    queue.put_many(db, range(3))
    worker = Worker(db, queue, handler, batch=3, batch_wait_s=0, threads=1, root=space)
    worker.start()
    began.wait(PATIENCE_S)
    worker.stop(at_once=True)
    assert worker.join(PATIENCE_S)
    go_on.set()
    assert queue.statistics(db)["tasks"]["ready"] == 3
    assert {task.failures for task in queue.tasks(db, "r", 3)} == {0}


def test_a_stop_waits_for_the_batch_under_way(db, queue, space):
    began, go_on = threading.Event(), threading.Event()

    def handler(_: list[HeldTask]) -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    queue.put_many(db, range(5))
    worker = Worker(db, queue, handler, batch=3, batch_wait_s=0, threads=1, root=space)
    worker.start()
    began.wait(PATIENCE_S)
    worker.stop()
    go_on.set()
    assert worker.join(PATIENCE_S)
    assert worker.status().tally.done == 3
    assert queue.statistics(db)["tasks"]["ready"] == 2


def test_a_batch_that_is_ready_goes_back_at_a_stop(db, queue, space, monkeypatch):
    """Also if the worker hears of the stop only when its thread is idle again."""
    queue.put_many(db, range(2))
    queue.release(db, queue.take(db, 0), failure=Failure("Earlier", "so it runs alone"))
    seen: list[list[Any]] = []
    wait = ThreadPool.wait_for_free
    monkeypatch.setattr(ThreadPool, "wait_for_free", lambda *given: wait(*given) or wait(*given))

    def handler(tasks: list[HeldTask]) -> None:
        seen.append([task.data for task in tasks])
        worker.stop()

    options: dict[str, Any] = {"batch": 2, "batch_wait_s": 0, "attempts": 2, "root": space}
    worker = Worker(db, queue, handler, threads=1, **options)
    worker.run()
    assert seen == [[0]]
    assert [(task.data, task.failures) for task in queue.tasks(db, "r", 2)] == [(1, 0)]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_coroutine_function_gets_lists_too(db, queue, space, in_transaction):
    seen: list[type] = []

    async def plain(tasks: list[aio.HeldTask]) -> None:
        seen.extend(map(type, tasks))
        tasks[0].bury("no")

    async def within(tr: aio.Transaction, tasks: list[aio.HeldTask]) -> None:
        await tr.get(b"x")
        await plain(tasks)

    queue.put_many(db, range(3))
    options: dict[str, Any] = {"batch": 3, "batch_wait_s": 0, "transactional": in_transaction, "root": space}
    worker: Worker = Worker(db, queue, within if in_transaction else plain, **options)
    worker.run(until_empty=True)
    assert set(seen) == {aio.HeldTask}
    assert (worker.status().tally.done, worker.status().tally.buried) == (2, 1)


def test_a_coroutine_is_cancelled_when_all_its_tasks_are_gone(db, queue, space):
    """One lost lease is not enough."""
    went_on: list[Any] = []

    async def handler(tasks: list[aio.HeldTask]) -> None:
        for task in tasks:
            task.hold.take_away()
            went_on.append(task.data)
            await asyncio.sleep(0)
        await asyncio.sleep(PATIENCE_S)

    queue.put_many(db, range(2))
    worker: Worker = Worker(db, queue, handler, batch=2, batch_wait_s=0, attempts=1, root=space)
    worker.start()
    wait_until(lambda: worker.status().tally.lost == 2)
    worker.stop(at_once=True)
    assert worker.join(PATIENCE_S)
    assert went_on[:2] == [0, 1]


def test_a_coroutine_is_cancelled_with_its_last_task(db, queue, space):
    async def handler(tasks: list[aio.HeldTask]) -> None:
        if tasks[0].attempts == 1:
            for task in tasks:
                task.hold.note_cancel()
            await asyncio.sleep(10 * PATIENCE_S)

    queue.put_many(db, range(2))
    with working(Worker(db, queue, handler, batch=2, batch_wait_s=0, root=space)) as worker:
        wait_until(lambda: worker.status().tally.done == 2)
    assert worker.status().tally.snoozed == 2


SINGLE = """
import sys, fdbqueue
db = fdbqueue.open("memory:")
q = fdbqueue.TaskQueue.create(db, "q")
q.put(db, 1)
q.ack(db, *q.take_many(db, 2))
q.put(db, 1)
fdbqueue.Worker(db, q, print).run(until_empty=True)
assert not {"fdbqueue.fleet.batches", "fdbqueue.tasks.filling"} & sys.modules.keys()
"""
BAD = [
    {"batch": 0},
    {"batch": -1},
    {"batch": 201},
    {"batch": 1.5},
    {"batch": True},
    {"batch": 2, "batch_wait_s": -1},
    {"batch": 2, "batch_wait_s": math.nan},
    {"batch": 2, "batch_wait_s": math.inf},
    {"batch_wait_s": 1},
]


@pytest.mark.parametrize("options", BAD)
def test_nonsense_is_refused(db, queue, space, options):
    with pytest.raises(InvalidArgument, match="batch"):
        Worker(db, queue, ok, root=space, **options)
    with pytest.raises(InvalidArgument, match="batch"):
        Fleet("memory:", "jobs", "x:y", **options)

    async def handler(_: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="batch"):
        Worker(db, queue, handler, root=space, **options)


def test_a_decision_of_a_handler_of_single_tasks_is_refused(db, queue, work):
    task = queue.put(db, 1)
    work(lambda task: task.snooze(1), attempts=1)
    assert "batch" in queue.failures(db, task)[0].message


def test_a_failure_has_an_error(db, queue, batches):
    def handler(tasks: list[HeldTask]) -> None:
        for nonsense in ("odd", None, Done(), ValueError):
            with pytest.raises(InvalidArgument, match="error"):
                tasks[0].fail(nonsense)

    queue.put(db, 1)
    assert batches(handler)[1] == [("succeeded", 1)]


def test_a_worker_of_single_tasks_imports_no_batches():
    subprocess.run([sys.executable, "-c", SINGLE], check=True, capture_output=True, timeout=PATIENCE_S)
