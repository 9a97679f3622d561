"""An export and an import that end at any moment, and begin again, give the same result."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.registry import Registry
from fdbqueue.embedded import FDBError
from fdbqueue.operate.exports import exporting, importing
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import ExportFile
from tests.exports.support import export, filled, imported, plain, set_limits, stored, target, told
from tests.queue_support import FATES, Fate, faulty
from tests.support import PATIENCE_S, wait_until

__all__ = ["target"]
ROWS = 7
"""Rows of a batch: the exports of these tests have some dozen batches."""
UNSURE = ("unknown, either way, twice", "conflict, then unknown, committed")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPORT_BATCH_ROWS", "IMPORT_BATCH_ITEMS"):
        monkeypatch.setattr(limits, name, ROWS)


@pytest.fixture
def source() -> Any:
    with fdbqueue.open("memory:") as database:
        set_limits(database)
        filled(database, "utubettl")
        plain(database)
        yield database


def dying(call: Callable[..., Any], at: int, *, after: bool) -> Callable[..., Any]:
    """`call`, whose `at`-th use kills the process, before its effect or after it."""
    left = [at]

    def called(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0]:
            return call(*arguments, **more)
        if after:
            call(*arguments, **more)
        raise Killed

    return called


def until_whole(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, work: Callable[[], Any]) -> int:
    """Kill each run of `work` one use later of `place.name`, until one ends. Return the number of kills."""
    original, kills = getattr(place, name), 0
    while True:
        with monkeypatch.context() as patched:
            patched.setattr(place, name, dying(original, kills + 1, after=bool(kills % 2)))
            try:
                work()
            except Killed:
                kills += 1
                assert kills < 1_000
            else:
                return kills


@pytest.mark.parametrize("place", [(exporting, "run"), (ExportFile, "write")], ids=["read", "write"])
def test_an_export_goes_on_after_each_kill(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    export(source, whole, in_use=True)
    kills = until_whole(monkeypatch, *place, lambda: export(source, killed, in_use=True))
    assert kills >= 5
    assert told(killed) == told(whole)


def test_an_export_goes_on_behind_a_line_that_was_cut(source: Database, tmp_path: Path) -> None:
    """The power may end while the file is written, so it may end anywhere."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    export(source, whole, in_use=True)
    found = whole.read_bytes()
    first = found.index(b"\n") + 1
    for size in [0, first, *range(first + 1, len(found), len(found) // 6), len(found) - 1]:
        cut.write_bytes(found[:size] + b"\x00" * (size % 3))
        export(source, cut, in_use=True)
        assert told(cut) == told(whole)


def test_an_export_goes_on_whatever_the_order_of_names(target: Database, tmp_path: Path) -> None:
    """It goes on behind the name of the last queue that is whole."""
    names = ("second", "first")
    for name in names:
        TaskQueue.create(target, name).pause(target)
    steps = Export(target, Registry(), names).run(tmp_path / "export")
    next(step for step in steps if step.is_done)
    steps.close()
    export(target, tmp_path / "export", *names)
    with fdbqueue.open("memory:") as other:
        assert imported(other, tmp_path / "export") == {"first": {}, "second": {}}


def test_an_export_of_all_queues_goes_on_behind_a_full_page(
    target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of one queue that an export passes over is not its last."""
    monkeypatch.setattr(limits, "QUEUES_LISTED_MAX", 1)
    TaskQueue.create(target, "b", temporary=True)
    for name in "ac":
        TaskQueue.create(target, name)
    assert export(target, tmp_path / "export", in_use=True) == {"a": {}, "c": {}}


@pytest.mark.parametrize(("name", "least"), [("run_once", 2), ("run", 3)], ids=["begin", "fill"])
def test_an_import_goes_on_after_each_kill(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, least: int
) -> None:
    """Each task is there once; the statistics are those of the file."""
    export(source, tmp_path / "export", in_use=True)
    kills = until_whole(monkeypatch, importing, name, lambda: imported(target, tmp_path / "export"))
    assert kills >= least
    assert verify(target).sound
    export(target, tmp_path / "again", in_use=True)
    assert told(tmp_path / "again") == told(tmp_path / "export")


@pytest.mark.parametrize("fate", [FATES[name] for name in UNSURE], ids=UNSURE)
def test_an_import_happens_once_despite_unknown_results(
    source: Database, target: Database, tmp_path: Path, fate: Fate
) -> None:
    export(source, tmp_path / "export", in_use=True)
    unreliable, engine = faulty(target, FDBError)
    engine.fate = fate
    imported(unreliable, tmp_path / "export")
    assert verify(target).sound
    with fdbqueue.open("memory:") as other:
        imported(other, tmp_path / "export")
        for name in ("utubettl", "plain"):
            assert stored(target, name) == stored(other, name)


def test_a_killed_import_is_started_again(tmp_path: Path) -> None:
    """A real kill, and a directory that processes share."""
    count, url, path = 2_000, f"embedded:{tmp_path}/data", tmp_path / "export"
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "jobs")
        for start in range(0, count, 500):
            queue.put_many(db, list(range(start, start + 500)))
        queue.pause(db)
        export(db, path)
    command = [sys.executable, "-m", "fdbqueue.operate.cli", "--url", url, "import", "file", str(path)]
    fdbqueue.open(url).close()
    with fdbqueue.open(url) as db:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: "jobs" in [one.name for one in names(db)], patience_s=6 * PATIENCE_S)
            os.kill(process.pid, signal.SIGKILL)
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        there = TaskQueue.open(db, "jobs")
        assert there.statistics(db)["tasks"]["ready"] == count
        assert verify(db).sound


def names(db: Database) -> list[Any]:
    return importing.Registry().names(db)
