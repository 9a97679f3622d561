"""A worker whose database does not heal in its process ends, and tells why in one line."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Fleet, TaskQueue, Worker
from fdbqueue.core.errors import DatabaseNotFound, StorageReplaced
from tests.support import wait_until

PATIENCE_S = 60.0


@pytest.fixture
def engine() -> str:
    return "embedded"


class Run(threading.Thread):
    """A call of `worker.run()`, and the error that it raises."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(daemon=True)
        self._worker = worker
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._worker.run()
        except Exception as error:
            self.error = error

    def end(self) -> Exception | None:
        """Wait for the end; return the error."""
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.error


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log, with its tracebacks."""
    return [caplog.handler.format(record) for record in caplog.records]


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
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


def test_a_fleet_makes_no_database_in_place_of_a_removed_one(db: Database, url: str, tmp_path: Path) -> None:
    TaskQueue.create(db, "jobs")
    fleet = Fleet(url, "jobs", "builtins:id")
    db.close()
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DatabaseNotFound):
        fleet.run()
    assert not (tmp_path / "data").exists()
