"""Attempts: a worker runs tasks, and their results tell how they ended."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

import fdbqueue
import fdbqueue.integrations.django
from fdbqueue import Failure
from fdbqueue.core.errors import ResultTimeout
from fdbqueue.integrations.django import api, backend
from tests.django.test_backend import status
from tests.support import Keys

pytestmark = pytest.mark.usefixtures("workers_end_soon")
Work = Callable[..., fdbqueue.Worker]


def test_a_task_that_returns_is_successful(jobs: ModuleType, work: Work, heard: list[Any]) -> None:
    result = jobs.add.enqueue(1, y=2)
    worker = work()
    result.refresh()

    assert (str(result.status), result.return_value, result.errors) == ("SUCCESSFUL", 3, [])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.attempts, len(result.worker_ids)) == (1, 1)
    assert (result.args, result.kwargs, result.task) == ([1], {"y": 2}, jobs.add)
    assert [status for status, _ in heard] == ["READY", "RUNNING", "SUCCESSFUL"]
    assert heard[-1][1] == result
    assert worker.status().tally.done == 1


def test_a_coroutine_function_runs_in_an_event_loop(jobs: ModuleType, work: Work) -> None:
    result = jobs.add_soon.enqueue(1, 2)
    work()
    result.refresh()

    assert result.return_value == 3


def test_a_task_is_told_its_context(jobs: ModuleType, work: Work) -> None:
    result = jobs.tell_context.enqueue()
    work()
    result.refresh()

    assert result.return_value == [result.id, 1, "RUNNING", result.worker_ids]


@pytest.mark.parametrize(
    ("name", "arguments", "path", "end"),
    [
        ("fail", ["no"], "tests.django.jobs.OddError", "OddError: no\n"),
        ("leave", [], "builtins.SystemExit", "SystemExit: 3\n"),
        ("give_a_set", [], "builtins.TypeError", "\n"),
        ("give_too_much", [], "fdbqueue.core.errors.PayloadTooLarge", "\n"),
        ("add", ["one"], "builtins.TypeError", "argument: 'y'\n"),
    ],
)
def test_a_task_that_raises_has_failed(
    jobs: ModuleType, work: Work, heard: list[Any], name: str, arguments: list[Any], path: str, end: str
) -> None:
    """At its first attempt, as with each backend of Django."""
    result = getattr(jobs, name).enqueue(*arguments)
    work()
    result.refresh()

    [error] = result.errors
    assert (str(result.status), error.exception_class_path) == ("FAILED", path)
    assert error.traceback.endswith(end)
    assert issubclass(error.exception_class, BaseException)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.attempts == 1
    assert [status for status, _ in heard] == ["READY", "RUNNING", "FAILED"]
    told = heard[-1][1]
    assert (told.errors, told.worker_ids, told.id) == (result.errors, result.worker_ids, result.id)


def test_a_failed_task_is_a_dead_letter_that_can_run_again(
    jobs: ModuleType, work: Work, backend: Any, db: fdbqueue.Database
) -> None:
    result = jobs.fail.enqueue("no")
    work()
    queue = backend.task_queues.there("default")
    dead = fdbqueue.DeadLetters.open(db, queue.name)
    [letter] = dead.tasks(db, 10)
    assert (letter.error, letter.failure.message) == ("tests.django.jobs.OddError", "no")

    call = {"task": "tests.django.jobs.add", "args": [1, 2], "kwargs": {}}
    dead.edit(db, letter.task, call, kick=True)
    assert status(result) == "READY"
    work()
    assert status(result) == "SUCCESSFUL"
    assert (result.return_value, result.attempts, len(result.errors)) == (3, 2, 1)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ({"task": "tests.nothing.here", "args": [], "kwargs": {}}, "builtins.ModuleNotFoundError"),
        ({"task": "os.getcwd", "args": [], "kwargs": {}}, "django.core.exceptions.SuspiciousOperation"),
        ("no call", "django.core.exceptions.SuspiciousOperation"),
    ],
)
def test_data_that_are_no_task_of_the_process_are_buried(
    jobs: ModuleType, work: Work, backend: Any, db: fdbqueue.Database, heard: list[Any], call: Any, path: str
) -> None:
    jobs.note.enqueue("makes the queue")
    queue = backend.task_queues.there("default")
    queue.put(db, call, pri=0, result_ttl=60)
    heard.clear()
    work(threads=1)

    [buried] = queue.tasks(db, "!", 10)
    assert queue.failures(db, buried)[0].error == path
    assert [status for status, _ in heard] == ["RUNNING", "SUCCESSFUL"]


def test_tasks_of_a_higher_priority_run_first(jobs: ModuleType, work: Work) -> None:
    jobs.ran.clear()
    for priority in (-100, 0, 7, 100):
        jobs.note.using(priority=priority).enqueue(priority)
    work(threads=1)

    assert jobs.ran == [100, 7, 0, -100]


def test_a_worker_takes_its_queues_only(jobs: ModuleType, work: Work) -> None:
    mail, sum_ = jobs.mail.enqueue("ada"), jobs.add.enqueue(1, 2)
    work("mails")

    assert (status(mail), status(sum_)) == ("SUCCESSFUL", "READY")


def test_a_task_may_ask_for_another_attempt(jobs: ModuleType, work: Work) -> None:
    """`raise Retry`, which Django does not have. The errors of earlier attempts stay."""
    result = jobs.try_again.enqueue()
    work()
    result.refresh()

    assert (result.return_value, result.attempts) == (3, 3)
    assert [error.exception_class for error in result.errors] == [fdbqueue.Retry] * 2
    assert result.started_at < result.last_attempted_at


def test_a_step_that_is_done_is_not_run_again(jobs: ModuleType, work: Work, k: Keys) -> None:
    result = jobs.charge.enqueue(k("charged").hex())
    work()
    result.refresh()

    assert (result.attempts, result.return_value) == (2, 1)


def test_a_coroutine_function_is_told_its_held_task(jobs: ModuleType, work: Work) -> None:
    result = jobs.tell_held_task.enqueue()
    work()
    result.refresh()

    assert result.id.endswith(f":{result.return_value}")
    assert fdbqueue.integrations.django.held_task() is None


def test_an_effect_is_in_the_transaction_of_the_ack(
    jobs: ModuleType, work: Work, db: fdbqueue.Database, k: Keys
) -> None:
    result = jobs.count_once.enqueue(k("count").hex())
    work()
    result.refresh()

    assert (bytes(db[k("count")]), result.return_value) == (b"\1", "counted")


def test_a_running_task_tells_its_worker(jobs: ModuleType, backend: Any, db: fdbqueue.Database) -> None:
    """As the database has it: a task that a process holds is running."""
    result = jobs.add.enqueue(1, 2)
    backend.task_queues.there("default").take(db)
    result.refresh()

    assert (str(result.status), result.attempts, result.finished_at) == ("RUNNING", 1, None)
    assert result.started_at == result.last_attempted_at
    assert datetime.now(UTC) - result.started_at < timedelta(minutes=1)
    assert result.worker_ids == [f"{db.runtime.host_name()}:{db.runtime.process_id()}"]


def test_an_operator_may_bury_a_task(jobs: ModuleType, backend: Any, db: fdbqueue.Database) -> None:
    result, told = jobs.add.enqueue(1, 2), jobs.add.enqueue(3, 4)
    queue = backend.task_queues.there("default")
    queue.bury(db, queue.take(db))
    queue.bury(db, queue.take(db), failure=Failure("Unwanted", "not now"))

    assert (status(result), result.errors) == ("FAILED", [])
    assert (status(told), told.errors[0].traceback) == ("FAILED", "fdbqueue.Unwanted: not now\n")


def test_a_result_has_a_time_to_live(
    options: dict[str, Any], jobs: ModuleType, work: Work, backend: Any
) -> None:
    options["result_ttl"] = 0.01
    result = jobs.add.enqueue(1, 2)
    work()
    threading.Event().wait(0.02)  # the real clock of three engines

    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result(result.id)


def test_a_program_waits_for_a_result(jobs: ModuleType, work: Work) -> None:
    result, failed = jobs.add.enqueue(1, 2), jobs.fail.enqueue("no")
    with pytest.raises(ResultTimeout):
        fdbqueue.integrations.django.wait(result, timeout=0)
    waiting = threading.Thread(target=fdbqueue.integrations.django.wait, args=(result, 60))
    waiting.start()
    work()
    waiting.join()
    fdbqueue.integrations.django.wait(failed, timeout=60)

    assert result.return_value == 3
    assert str(failed.status) == "FAILED"


def test_each_task_has_fresh_connections(
    jobs: ModuleType, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django closes those that are too old or broken around a request, and so does the worker."""
    closed = []
    monkeypatch.setattr(backend, "close_old_connections", lambda: closed.append(list(jobs.ran)))
    jobs.ran.clear()
    jobs.note.enqueue(1)
    work(threads=1)

    assert closed == [[], [1]]


def test_a_receiver_that_raises_does_not_undo_a_task(
    jobs: ModuleType, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    def receiver(**_: Any) -> None:
        raise OSError("the receiver is broken")

    api.task_finished.connect(receiver)
    try:
        result = jobs.add.enqueue(1, 2)
        with caplog.at_level(logging.WARNING, "fdbqueue.worker"):
            work()
    finally:
        api.task_finished.disconnect(receiver)

    assert status(result) == "SUCCESSFUL"
    assert "the receiver is broken" in caplog.text


def test_the_log_of_django_shows_a_failure(
    jobs: ModuleType, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    result = jobs.fail.enqueue("no")
    with caplog.at_level(logging.INFO, api.LOGGER):
        work()

    [line] = [
        record for record in caplog.records if record.levelname == "ERROR" and record.name == api.LOGGER
    ]
    assert result.id in line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[0] is jobs.OddError
