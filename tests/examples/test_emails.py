"""The e-mail sender: its limit for each customer, its attempts and its schedule, on both faces."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from examples import emails
from fdbqueue import Backoff, Database, Schedule, TaskFunction, TaskQueue, TaskState, Worker, aio
from fdbqueue.core.task import Why

PROGRAM = Path(emails.__file__)
FAST = Backoff(0.01, cap_s=0.01)
pytestmark = pytest.mark.usefixtures("workers_end_soon")


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"embedded:{tmp_path}/data"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with fdbqueue.open(url) as database:
        emails.prepare(database)
        yield database


def test_two_emails_of_a_customer_run_at_a_time(db: Database) -> None:
    queue = TaskQueue.open(db, "emails")
    for to in ("ada", "ada", "ada", "bob"):
        emails.send.put(db, to)
    taken = [queue.take(db, 0) for _ in range(4)]
    assert [task and task.data["args"] for task in taken] == [["ada"], ["ada"], ["bob"], None]
    [last] = queue.tasks(db, TaskState.READY, 10)
    assert queue.explain(db, last).reasons[0].why == Why.LIMIT_REACHED


def test_an_email_is_buried_after_five_attempts(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(to: str, subject: str = "") -> str:
        raise ConnectionError(f"{to}: {subject}")

    failing: TaskFunction[..., ..., str] = TaskFunction(emails.emails, "send", fail, False, {})
    monkeypatch.setitem(emails.emails.functions, "send", failing)
    task = emails.send.put(db, "ada")
    worker = Worker(db, "emails", emails.emails, attempts=2, backoff=FAST)
    worker.run(until_empty=True)
    failures = TaskQueue.open(db, "emails").failures(db, task)
    assert [failure.error for failure in failures] == ["ConnectionError"] * 5
    assert failures[-1].outcome == "buried"


def test_the_report_is_sent_by_its_schedule(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    emails.prepare(db)  # at each start of the program
    task = Schedule.open(db, "report").run(db)
    Worker(db, "emails", emails.emails).run(until_empty=True)
    assert capsys.readouterr().out == "sent 'report' to boss@example.com\n"
    assert task is not None
    assert task.attempts_max == 5
    assert emails.send.result(db, task, timeout=0) == "boss@example.com"


def test_the_same_under_asyncio(url: str) -> None:
    async def main() -> str:
        async with aio.open(url) as db:
            await db.run_blocking(emails.prepare)
            task = await emails.send.put(db, "ada")
            await aio.Worker(db, "emails", emails.emails).run(until_empty=True)
            return str(await emails.send.result(db, task, timeout=0))

    assert asyncio.run(main()) == "ada"


def test_the_program_runs_by_itself(tmp_path: Path) -> None:
    """In a shell of a user, as the page tells."""
    environment = {"FDBQUEUE_URL": f"embedded:{tmp_path}/data", "PYTHONPATH": str(PROGRAM.parents[1])}
    command = [sys.executable, str(PROGRAM)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "sent 'hi' to ada@example.com\n"
