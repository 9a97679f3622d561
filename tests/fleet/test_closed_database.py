"""A worker whose database is closed, or does not heal, ends and tells why. A handler cannot close it."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Fleet, TaskQueue, Worker
from fdbqueue.core.errors import DatabaseClosed, DatabaseNotFound, StorageReplaced
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from tests.fleet.conftest import SOON, Run
from tests.support import PATIENCE_S, wait_until

IN_TIME_S = 20
on_a_directory = pytest.mark.parametrize("engine", ["embedded"])


@pytest.fixture
def own(url):
    """A database that the test closes."""
    with fdbqueue.open(url) as database:
        yield database


def waiting(worker, monkeypatch):
    """Run the worker until it waits for tasks."""
    waits, take = threading.Event(), worker._feed.take

    def take_and_tell(*arguments):
        waits.set()
        return take(*arguments)

    monkeypatch.setattr(worker._feed, "take", take_and_tell)
    run = Run(worker)
    assert waits.wait(IN_TIME_S)
    return run


def in_a_block(task):
    with task.database as database:
        database.counters.commits += 0


async def in_an_awaited_block(task):
    async with task.database as database:
        await database.get(b"")


async def closing_awaited(task):
    await task.database.close()
    task.database.blocking.close()


@pytest.mark.parametrize(
    "handler", [in_a_block, lambda task: task.database.close(), in_an_awaited_block, closing_awaited]
)
def test_a_handler_may_close_the_database_that_it_was_given(db, queue, work, handler):
    """That does nothing: the handler and the worker go on with it."""
    queue.put_many(db, [1, 2, 3])
    assert sorted(work(handler, attempts=1)) == [("succeeded", number) for number in (1, 2, 3)]
    assert not db.closed


def test_a_task_has_the_database_of_its_worker(own, space):
    """With its session, and its end."""
    queue, seen, root = TaskQueue.create(own, "one", root=space), [], RootKeys(space)
    queue.put(own, 1)
    Worker(own, queue, lambda task: seen.append(task.database), root=space).run(until_empty=True)
    (database,) = seen
    assert isinstance(database, fdbqueue.Database)
    assert keeper_of(database, root) is keeper_of(own, root)
    own.close()
    assert database.closed
    with pytest.raises(DatabaseClosed):
        queue.put(database, 1)


def test_a_closed_database_of_a_handler_is_a_failure(db, queue, work):
    """It is no outage: the process itself has closed it, and each attempt would meet it."""
    own = fdbqueue.open("memory:")
    own.close()
    queue.put_many(db, ["poison", "good"])
    handler = lambda task: own.get(b"") if task.data == "poison" else None  # noqa: E731
    told = work(handler, threads=1, attempts=2)
    assert sorted(told) == [("buried", "poison"), ("retried", "poison"), ("succeeded", "good")]
    (buried,) = queue.tasks(db, "!", 2)
    assert {failure.error for failure in queue.failures(db, buried)} == {"DatabaseClosed"}


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("names", [["one"], ["one", "another", "third"]])
def test_a_waiting_worker_ends_when_its_database_is_closed(own, space, monkeypatch, names):
    for name in names:
        TaskQueue.create(own, name, root=space)
    run = waiting(Worker(own, names, print, backoff=SOON, root=space), monkeypatch)
    own.close()
    assert isinstance(run.end(), DatabaseClosed)
    assert run.worker.status().state == "ended"


def test_a_worker_of_coroutines_ends_when_its_database_is_closed(own, space):
    TaskQueue.create(own, "one", root=space).put(own, 1)
    begun = threading.Event()

    async def handle(_):
        begun.set()

    run = Run(Worker(own, "one", handle, root=space))
    assert begun.wait(IN_TIME_S)
    own.close()
    assert isinstance(run.end(), DatabaseClosed)


def test_a_running_handler_may_end_after_its_database_is_closed(own, space):
    TaskQueue.create(own, "one", root=space).put(own, 1)
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def handle(_):
        begun.set()
        ended.append(may_end.wait(IN_TIME_S))

    run = Run(Worker(own, "one", handle, threads=2, root=space))
    assert begun.wait(IN_TIME_S)
    own.close()
    wait_until(lambda: run.worker.status().state == "stopping")  # another thread has met the closed database
    may_end.set()
    assert isinstance(run.end(), DatabaseClosed)
    assert ended == [True]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log, with its tracebacks."""
    return [caplog.handler.format(record) for record in caplog.records]


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
@on_a_directory
def test_a_worker_ends_when_its_directory_is_replaced(
    db: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, awaited: bool
) -> None:
    """It would take nothing for ever, also when a good database is at the path again."""
    with fdbqueue.open(f"embedded:{tmp_path}/good") as good:
        TaskQueue.create(good, "jobs")
    TaskQueue.create(db, "jobs").put(db, 1)

    async def handle(_: Any) -> None: ...

    worker = Worker(db, "jobs", handle if awaited else lambda _: None)
    run = Run(worker)
    wait_until(lambda: worker.status().tally.done == 1, PATIENCE_S)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    (tmp_path / "good").rename(tmp_path / "data")
    assert isinstance(run.end(), StorageReplaced)
    lines = told(caplog)
    assert len(lines) <= (2 if awaited else 1), lines  # one for each face of the database
    assert not any("\n" in line for line in lines)


@on_a_directory
def test_a_busy_worker_ends_when_its_directory_is_gone(db: Database, tmp_path: Path) -> None:
    """The heartbeat learns of it, and its handlers learn that their leases are lost."""
    TaskQueue.create(db, "jobs").put(db, 1)
    begun, may_end, lost = threading.Event(), threading.Event(), threading.Event()

    def handle(task: Any) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)
        if task.lost:
            lost.set()

    run = Run(Worker(db, "jobs", handle, threads=1, session_ttr_s=1.5, grace_s=0))
    assert begun.wait(PATIENCE_S)
    shutil.rmtree(tmp_path / "data")
    assert isinstance(run.end(), StorageReplaced)
    may_end.set()
    assert lost.wait(PATIENCE_S)


@on_a_directory
def test_a_fleet_makes_no_database_in_place_of_a_removed_one(db: Database, url: str, tmp_path: Path) -> None:
    TaskQueue.create(db, "jobs")
    fleet = Fleet(url, "jobs", "builtins:id")
    db.close()
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DatabaseNotFound):
        fleet.run()
    assert not (tmp_path / "data").exists()
