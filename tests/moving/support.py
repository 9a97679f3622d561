"""The import command, run within the test, and the tasks and items that it leaves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run


class Program:
    """The program with one database, in a directory of the test."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.url = f"embedded:{folder}/data"
        self._capture = capture

    def __call__(self, *arguments: object) -> tuple[int, list[Any], str]:
        """Return the status, the JSON values of standard output, and standard error."""
        self._capture.readouterr()
        status = run(cli, ["--url", self.url, "import", *map(str, arguments), "--json"])
        out, err = self._capture.readouterr()
        return status, [json.loads(line) for line in out.splitlines()], err

    def tasks(self, name: str, state: str = "r") -> list[Any]:
        with fdbqueue.open(self.url) as db:
            return [task.data for task in TaskQueue.open(db, name).tasks(db, state, 1000)]

    def all_tasks(self, name: str) -> list[Any]:
        found: list[Any] = []
        after = None
        with fdbqueue.open(self.url) as db:
            while True:
                page = TaskQueue.open(db, name).tasks(db, "r", 1000, after=after)
                found += [task.data for task in page]
                if (after := page.next) is None:
                    return found

    def items(self, name: str) -> list[Any]:
        with fdbqueue.open(self.url) as db:
            return list(fdbqueue.Queue.named(db, name, create=False).items(db, 1000))


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Program:
    return Program(tmp_path, capfd)


def counts(moved: int, **others: int) -> dict[str, int]:
    return {"moved": moved, "buried": 0, "left_out": 0, "skipped": 0, "moved_earlier": 0} | others


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a directory, without those that SQLite makes for readers."""
    for path in sorted(folder.iterdir()):
        if not path.name.endswith(("-shm", "-wal")):
            yield path.name, path.read_bytes()
