"""fdbqueue_worker: runs all tasks of a test, and returns when none waits."""

import time

import pytest

from fdbqueue import Bury, Database, Retry, Snooze, TaskQueue, Unavailable, aio
from fdbqueue.core.errors import WrongType
from fdbqueue.testing.pytest_plugin import Runner, assert_buried, assert_put

DAY_S = 86_400


@pytest.fixture
def mails(fdbqueue_db: Database) -> TaskQueue:
    return TaskQueue.create(fdbqueue_db, "mails", "fifottl", ttr=60)


def test_every_task_has_run_when_the_call_returns(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    seen = []
    mails.put_many(fdbqueue_db, ["ann", "bob"])

    tally = fdbqueue_worker("mails", lambda task: seen.append(task.data))

    assert (seen, tally.done) == (["ann", "bob"], 2)
    assert_put(mails, 0)


def test_tasks_that_a_handler_puts_run_too(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    reports, seen = TaskQueue.create(fdbqueue_db, "reports", "fifo"), []

    def handle(task: object) -> None:
        seen.append(task.queue)  # type: ignore[attr-defined]
        if task.queue == "mails" and len(seen) < 4:  # type: ignore[attr-defined]
            reports.put(fdbqueue_db, 1)
            mails.put(fdbqueue_db, 2)

    mails.put(fdbqueue_db, 0)
    fdbqueue_worker(["mails", "reports"], handle)

    assert sorted(seen) == ["mails", "mails", "mails", "reports", "reports"]


def test_a_delay_takes_no_time(fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner) -> None:
    seen = []
    for days in (2, 1, 400):
        mails.put(fdbqueue_db, days, delay=days * DAY_S)
    began = fdbqueue_db.runtime.now()

    fdbqueue_worker(mails, lambda task: seen.append((task.data, fdbqueue_db.runtime.now() - began)))

    assert [days for days, _ in seen] == [1, 2, 400]
    assert all(after >= days * DAY_S for days, after in seen)


@pytest.mark.parametrize("verdict", [Retry(DAY_S), Snooze(DAY_S)], ids=["retry", "snooze"])
def test_a_task_that_is_put_off_runs_again(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner, verdict: Exception
) -> None:
    def handle(task: object) -> None:
        if task.attempts == 1:  # type: ignore[attr-defined]
            raise verdict

    mails.put(fdbqueue_db, "late")

    assert fdbqueue_worker(mails, handle).done == 1


def test_the_error_of_a_handler_is_raised_in_the_test(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    def handle(task: object) -> None:
        raise ZeroDivisionError(task.data)  # type: ignore[attr-defined]

    mails.put(fdbqueue_db, "ann")

    with pytest.raises(ZeroDivisionError, match="ann"):
        fdbqueue_worker(mails, handle)
    assert_put(mails, 1, where=lambda task: task.failures == 1)


def test_without_raises_a_task_is_buried_as_in_a_worker(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    mails.put(fdbqueue_db, "ann")

    tally = fdbqueue_worker(mails, lambda _: 1 / 0, raises=False, attempts=3)

    assert (tally.failed, tally.buried) == (2, 1)
    assert_buried(mails, 1, where=lambda task: task.data == "ann")


def test_a_burial_by_the_handler_is_no_error(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    def handle(_: object) -> None:
        raise Bury("no such address")

    mails.put(fdbqueue_db, "ann")
    fdbqueue_worker(mails, handle)

    assert_buried(mails)


def test_a_transactional_handler_runs_with_its_ack(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    mails.put(fdbqueue_db, "ann")

    fdbqueue_worker(mails, lambda tr, task: tr.set(task.data.encode(), b"1"), transactional=True)

    assert fdbqueue_db[b"ann"] == b"1"


def test_a_coroutine_function_runs_too_after_any_delay(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    seen = []

    async def handle(task: aio.HeldTask) -> None:
        seen.append(task.data)

    mails.put(fdbqueue_db, "later", delay=DAY_S)
    mails.put(fdbqueue_db, "now")
    fdbqueue_worker(mails, handle)

    assert seen == ["now", "later"]


def test_a_result_is_there_when_the_call_returns(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    task = mails.put(fdbqueue_db, [1, 2], result_ttl=60)

    fdbqueue_worker(mails, lambda task: sum(task.data))

    assert mails.result(fdbqueue_db, task, timeout=0) == 3


def test_a_paused_queue_is_left_out(fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner) -> None:
    mails.put(fdbqueue_db, "ann")
    mails.pause(fdbqueue_db)

    assert fdbqueue_worker(mails, lambda _: None).done == 0
    assert_put(mails, 1)


def test_a_task_that_has_expired_does_not_run(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    seen = []
    mails.put(fdbqueue_db, "short", ttl=DAY_S)
    mails.pause(fdbqueue_db)
    other = TaskQueue.create(fdbqueue_db, "other", "fifottl")
    other.put(fdbqueue_db, "long", delay=2 * DAY_S)
    fdbqueue_worker(other, lambda _: None)
    mails.resume(fdbqueue_db)

    fdbqueue_worker(mails, lambda task: seen.append(task.data))

    assert seen == []


def test_tasks_that_never_end_fail_the_test(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    def handle(_: object) -> None:
        raise Snooze(DAY_S)

    mails.put(fdbqueue_db, "ann")

    with pytest.raises(AssertionError, match="after `within_s`"):
        fdbqueue_worker(mails, handle, within_s=0.2)


def test_a_service_that_is_away_fails_the_test(
    fdbqueue_db: Database, mails: TaskQueue, fdbqueue_worker: Runner
) -> None:
    def handle(_: object) -> None:
        raise Unavailable("the mail server")

    mails.put(fdbqueue_db, "ann")

    with pytest.raises(Unavailable):
        fdbqueue_worker(mails, handle)


def test_the_clock_of_the_test_never_goes_back(fdbqueue_db: Database) -> None:
    clock = fdbqueue_db.runtime
    later = clock.now() + DAY_S

    clock.skip_to(later)  # type: ignore[attr-defined]
    clock.skip_to(0)  # type: ignore[attr-defined]

    assert clock.now() >= later
    assert clock.now_us() >= later * 1_000_000


def test_each_test_has_a_database_of_its_own(fdbqueue_db: Database) -> None:
    assert TaskQueue.create(fdbqueue_db, "mails").statistics(fdbqueue_db)["calls"]["put"] == 0
    assert abs(fdbqueue_db.runtime.now() - time.time()) < DAY_S


def test_a_database_with_another_clock_is_refused() -> None:
    import fdbqueue

    with fdbqueue.open("memory:") as db, pytest.raises(WrongType):
        Runner(db)
