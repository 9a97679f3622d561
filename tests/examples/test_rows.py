"""The batch writer: rows that are there once, and one that SQLite refuses. On every engine, on both faces."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from examples import rows
from fdbqueue import Database, TaskQueue, Worker, aio
from tests.fleet.conftest import SOON

ROWS = [{"sensor": "a", "value": number} for number in range(25)]


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def queue(db: Database, space: Any) -> TaskQueue:
    return TaskQueue.create(db, "rows", "fifottl", ttr=60, root=space)


@pytest.mark.parametrize("handler", [rows.write, rows.write_beside])
def test_each_row_is_there_once(db: Database, queue: TaskQueue, space: Any, handler: Any) -> None:
    queue.put_many(db, [*ROWS, {"sensor": None, "value": 1}, {"sensor": "b"}])
    options: dict[str, Any] = {"batch": 10, "batch_wait_s": 0, "root": space}
    worker: Worker = Worker(db, queue, handler, **options)
    worker.run(until_empty=True)
    assert rows.count() == len(ROWS)
    assert (worker.status().tally.done, worker.status().tally.buried) == (len(ROWS), 2)


def test_rows_that_were_written_before_a_crash_are_not_doubled(
    db: Database, queue: TaskQueue, space: Any
) -> None:
    def crash(tasks: Any) -> None:
        rows.write(tasks)
        if tasks[0].attempts == 1:
            raise SystemExit

    queue.put_many(db, ROWS)
    options: dict[str, Any] = {"batch": 10, "batch_wait_s": 0, "backoff": SOON, "root": space}
    Worker(db, queue, crash, **options).run(until_empty=True)
    assert rows.count() == len(ROWS)


def test_a_loop_writes_batches(url: str, space: Any) -> None:
    async def work() -> int:
        async with aio.open(url) as db:
            queue = await aio.TaskQueue.create(db, "awaited", "fifottl", ttr=60, root=space)
            await queue.put_many(db, ROWS)
            options: dict[str, Any] = {"batch": 10, "batch_wait_s": 0, "root": space}
            worker = aio.Worker(db, queue, rows.write_beside, **options)
            await worker.run(until_empty=True)
            return worker.status().tally.done

    assert asyncio.run(work()) == len(ROWS) == rows.count()


def test_the_program_puts_rows_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FDBQUEUE_URL", f"embedded:{tmp_path}/data")
    rows.main(["put", "600"])
    assert capsys.readouterr().out == '{"rows": 0}\n'
