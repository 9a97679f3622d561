"""`fdbqueue import`, killed while it is at work."""

import importlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from tests.moving.support import Program, counts, program
from tests.support import wait_until

persistqueue = pytest.importorskip("persistqueue")

__all__ = ["program"]
COUNT = 3_000
INSERT = "INSERT INTO ack_queue_default (data, timestamp, status) VALUES (?, ?, 1)"


def filled(folder: Path) -> None:
    """Persist-queue commits each item: it makes the file, and one statement adds the rows."""
    json = importlib.import_module("persistqueue.serializers.json")
    persistqueue.SQLiteAckQueue(str(folder), serializer=json).put(0)
    with sqlite3.connect(folder / "data.db") as connection:
        connection.executemany(INSERT, [(b"%d" % number, float(number)) for number in range(1, COUNT)])
    connection.close()


def test_a_killed_import_is_started_again(program: Program, tmp_path: Path) -> None:
    """Every item is there once, in order."""
    filled(tmp_path / "old")
    arguments = ["persist-queue", str(tmp_path / "old"), "jobs", "--serializer", "json"]
    command = [sys.executable, "-m", "fdbqueue.operate.cli", "--url", program.url, "import", *arguments]
    with fdbqueue.open(program.url) as db:
        queue = TaskQueue.create(db, "jobs")
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: queue.statistics(db)["tasks"]["ready"] > 0)
            os.kill(process.pid, signal.SIGKILL)
        db.set(b"after the kill", b"")  # behind the commit that this process may make for the killed one
        moved = queue.statistics(db)["tasks"]["ready"]
    assert (process.returncode, 0 < moved < COUNT) == (-signal.SIGKILL, True)
    assert program(*arguments) == (0, [counts(COUNT - moved, moved_earlier=moved)], "")
    assert program.all_tasks("jobs") == list(range(COUNT))
