"""`manage.py fdbqueue_worker`, as processes of a Django project."""

import logging
import signal
import socket
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from django.core.management import CommandError, call_command
from django.test.utils import override_settings

import fdbqueue
from fdbqueue.core import binding
from fdbqueue.fleet.worker import Worker
from fdbqueue.integrations.django.management.commands import fdbqueue_worker
from tests.conftest import DURABLE, SLOW
from tests.django.conftest import tasks_setting
from tests.django.projects import Project, killed
from tests.django.test_backend import status
from tests.support import Keys, wait_until


@pytest.fixture(params=DURABLE)
def engine(request: pytest.FixtureRequest) -> str:
    """A database that processes share."""
    return request.param


@pytest.fixture
def project(tmp_path: Path, url: str, options: dict[str, Any]) -> Project:
    return Project(tmp_path / "project", tasks_setting(options | {"url": url}))


def test_a_worker_runs_until_its_queues_are_empty(jobs: ModuleType, project: Project) -> None:
    sums = [jobs.add.enqueue(1, 2), jobs.add_soon.enqueue(3, 4)]
    results = [*sums, jobs.mail.enqueue("ada"), jobs.fail.enqueue("no")]
    ran = project.manage("fdbqueue_worker", "--until-empty", "--threads", "2")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "fdbqueue_worker: tasks of default, mails\n"
    assert f"Task id={results[0].id} path=tests.django.jobs.add state=SUCCESSFUL" in ran.stderr
    assert "OddError: no" in ran.stderr
    assert [status(result) for result in results] == [*["SUCCESSFUL"] * 3, "FAILED"]


def test_a_worker_that_is_told_to_end_finishes_its_task(
    jobs: ModuleType, project: Project, db: fdbqueue.Database, k: Keys
) -> None:
    """The tasks that it has not begun stay ready."""
    first = jobs.wait_for_key.enqueue(k("begun").hex(), k("go").hex())
    second = jobs.wait_for_key.enqueue(k("begun").hex(), k("never").hex())
    with project.worker("--threads", "1", "--queue", "default") as process:
        wait_until(lambda: db[k("begun")] is not None, 60)
        process.send_signal(signal.SIGTERM)
        db[k("go")] = b""
        assert process.wait(60) == 0

    assert [status(first), status(second)] == ["SUCCESSFUL", "READY"]


def test_a_second_signal_gives_the_task_back(
    jobs: ModuleType, project: Project, db: fdbqueue.Database, k: Keys
) -> None:
    result = jobs.wait_for_key.enqueue(k("begun").hex(), k("never").hex())
    with project.worker("--threads", "1") as process:
        wait_until(lambda: db[k("begun")] is not None, 60)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: status(result) == "READY", 60)


def test_a_forked_child_of_a_task_leaves_its_worker_alone(jobs: ModuleType, project: Project) -> None:
    """A signal ends the child, and the child ends no lease."""
    results = [jobs.fork.enqueue(), jobs.add.enqueue(1, 2)]
    ran = project.manage("fdbqueue_worker", "--until-empty", "--threads", "1")
    assert ran.returncode == 0, ran.stderr
    assert ([status(result) for result in results], "lease lost" in ran.stderr) == (["SUCCESSFUL"] * 2, False)


class Stopped:
    """The stops of a worker. At the first one, the second signal arrives."""

    def __init__(self) -> None:
        self.at_once: list[bool] = []

    def stop(self, *, at_once: bool) -> None:
        self.at_once.append(at_once)
        if len(self.at_once) == 1:
            signal.raise_signal(signal.SIGTERM)


def test_a_second_signal_may_interrupt_the_first_ones_handler() -> None:
    stopped = Stopped()
    with fdbqueue_worker.stopped_by_signals(cast(Worker, stopped)):
        signal.raise_signal(signal.SIGINT)
    assert stopped.at_once == [False, True]


def test_the_task_of_a_killed_worker_runs_again(jobs: ModuleType, project: Project) -> None:
    """When the session of the worker has ended. The death is among the errors, and names the worker."""
    result, workers = jobs.die_at_first.enqueue(), []
    for exit_status in (9, 0):
        with project.worker("--threads", "1", "--until-empty") as process:
            assert process.wait(60) == exit_status
        workers.append(f"{socket.gethostname()}:{process.pid}")
    result.refresh()

    assert (result.return_value, result.attempts, result.worker_ids) == (2, 2, workers)
    assert [error.exception_class for error in result.errors] == [fdbqueue.errors.LeaseLost]
    assert result.started_at < result.last_attempted_at


def test_a_task_that_kills_its_workers_is_buried(
    jobs: ModuleType, tmp_path: Path, url: str, options: dict[str, Any]
) -> None:
    result = jobs.die.enqueue()
    tasks = tasks_setting(options | {"url": url, "attempts": 2, "session_ttr": 1})
    project = Project(tmp_path / "project", tasks)
    for exit_status in (9, 9, 0):
        with project.worker("--threads", "1", "--until-empty") as process:
            assert process.wait(60) == exit_status
    result.refresh()

    assert (str(result.status), result.attempts, len(result.errors)) == ("FAILED", 2, 2)
    assert result.errors[-1].exception_class is fdbqueue.errors.LeaseLost
    assert result.finished_at >= result.last_attempted_at > result.started_at


TASKS, KILLS = (1_000, 5) if SLOW else (100, 2)
THREADS = 4


@pytest.mark.timeout(900)
def test_no_task_is_lost_by_kills(
    jobs: ModuleType, project: Project, db: fdbqueue.Database, backend: Any, k: Keys
) -> None:
    """A task that ran twice was running at a kill, or its ack had not committed."""
    results = [jobs.count_run.enqueue(k(f"ran {number}").hex()) for number in range(TASKS)]
    queue = backend.task_queues.there("default")

    def left() -> int:
        tasks: dict[str, int] = queue.statistics(db)["tasks"]
        return tasks["ready"] + tasks["taken"] + tasks["delayed"]

    for kill in range(1, KILLS + 1):
        with project.worker("--threads", str(THREADS), "--verbosity", "0") as process:
            wait_until(lambda most=TASKS - TASKS * kill // (KILLS + 1): left() <= most, 300)
            killed(process)
    with project.worker("--threads", str(THREADS), "--verbosity", "0"):
        wait_until(lambda: left() == 0, 300)

    assert {status(result) for result in results} == {"SUCCESSFUL"}
    runs = [int.from_bytes(db[k(f"ran {number}")], "little") for number in range(TASKS)]
    assert min(runs) == 1
    assert sum(runs) - TASKS <= KILLS * THREADS


def test_a_worker_ends_when_its_directory_is_replaced(
    jobs: ModuleType, project: Project, tmp_path: Path, engine: str
) -> None:
    if engine == "fdb":
        pytest.skip("a cluster has no directory")
    result = jobs.mail.enqueue("ada")
    with project.worker() as process:
        wait_until(lambda: status(result) == "SUCCESSFUL", 60)
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        said, _ = process.communicate(timeout=60)
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert process.returncode == 2
    assert "CommandError: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "other"}, "The connection 'other' doesn't exist"),
        ({"queues": ["default", "letters"]}, "has no queue 'letters'; it has default, mails"),
        ({"threads": 0}, "threads must be a whole number from 1 to 1000, not 0."),
        ({"grace": -1.0}, "grace_s must be 0 or more seconds"),
    ],
)
@pytest.mark.usefixtures("backend")
def test_a_wrong_argument_is_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("fdbqueue_worker", **options)


@pytest.fixture
def _own_process(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the command sets for its process."""
    for name in fdbqueue_worker.LOGGERS:
        caplog.set_level(logging.INFO, name)
    monkeypatch.setattr(binding, "_asked", False)


@pytest.mark.usefixtures("_own_process")
def test_a_worker_of_any_queue_is_told_its_queues(options: dict[str, Any]) -> None:
    """An empty QUEUES allows each name."""
    with override_settings(TASKS=tasks_setting(options, QUEUES=[])):
        with pytest.raises(CommandError, match="name the queues with --queue"):
            call_command("fdbqueue_worker")
        call_command("fdbqueue_worker", queues=["letters"], until_empty=True, verbosity=0)
