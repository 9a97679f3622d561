"""A diagnosis looks at everything, and writes nothing that stays."""

import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

import fdbqueue
from fdbqueue import Failure, Severity, TaskQueue, TaskState, diagnose
from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import FDBError
from fdbqueue.operate import checks, diagnosis
from fdbqueue.operate.checks import Beat, DirectoryState, JournalState, Look, OpenFiles, check_directory
from fdbqueue.operate.diagnosis import Examination
from fdbqueue.operate.overview import Overview

FINE = DirectoryState("/data", "1.0", 1_000, 100, 50, 100, True, 0)


@pytest.fixture
def severities(db, space) -> Iterator[dict[str, Severity]]:
    return {check.name: check.severity for check in diagnose(db, watch_s=0, root=space).checks}


def test_a_new_database_is_fine(severities, engine):
    """On a machine under load a latency may be told."""
    severities.pop("latency")
    of_engine = {"cluster", "client library", "knobs", "batch priority"} if engine == "fdb" else {"directory"}
    assert set(severities) == {"versions", "clocks", "sessions", "open files", "queues", *of_engine}
    assert set(severities.values()) == {Severity.FINE}


def stored(db, space):
    return [(row.key, row.value) for row in db.get_range_startswith(space.key())]


def test_a_diagnosis_leaves_nothing_behind(db, space):
    TaskQueue.create(db, "q", root=space).put(db, 1)
    before = stored(db, space)
    diagnose(db, watch_s=0, root=space)
    assert stored(db, space) == before


def test_a_queue_without_workers_is_told(db, space):
    TaskQueue.create(db, "q", root=space).put(db, 1)
    found = diagnose(db, watch_s=0, root=space)
    assert [(one.name, one.cure) for one in found.checks if one.severity != Severity.FINE] == [
        ("queues", "fdbqueue work q MODULE:FUNCTION")
    ]
    assert found.severity == Severity.WARNING


def test_the_class_that_fills_a_queue_is_told(db, space):
    """The class with the most buried tasks, and the command that removes them, which makes room."""
    queue = TaskQueue.create(db, "q", "limfifottl", capacity=3, root=space)
    ids = [queue.put(db, n).id for n in range(3)]
    for error in ("Gone", "Late", "Gone"):
        queue.bury(db, queue.take(db, 5), failure=Failure(error))
    *_, check = [one for one in diagnose(db, watch_s=0, root=space).checks if one.name == "queues"]
    assert check.cure == (
        "First mend or stop what fails, 2 failures of Gone, or else it fills again. Then"
        " `fdbqueue delete q --where state=buried --where class=Gone` makes room."
    )
    assert queue.change(db, {"state": "buried", "class": "Gone"}, do="delete").changed == 2
    assert [task.id for task in queue.tasks(db, TaskState.BURIED, 9)] == [ids[1]]


def test_a_check_that_fails_is_told(db, space, monkeypatch):
    """The other checks are made all the same."""
    monkeypatch.setattr(checks, "see_latency", lambda *_: 1 / 0)
    found = {one.name: one for one in diagnose(db, watch_s=0, root=space).checks}
    assert found["latency"].severity == Severity.FAILURE
    assert "ZeroDivisionError" in found["latency"].text
    assert found["queues"].severity == Severity.FINE


def test_a_closed_database_is_an_error():
    with fdbqueue.open("memory:") as db:
        pass
    with pytest.raises(DatabaseClosed):
        diagnose(db)


@pytest.mark.parametrize("watch_s", [-1, float("nan"), "1", 3601, float("inf")])
def test_the_time_between_the_looks_is_checked(watch_s):
    with fdbqueue.open("memory:") as db, pytest.raises(InvalidArgument):
        diagnose(db, watch_s=watch_s)


def test_a_removed_directory_is_a_failure(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        shutil.rmtree(tmp_path / "data")
        found = {one.name: one for one in diagnose(db, watch_s=0).checks}
    assert found["directory"].severity == Severity.FAILURE
    assert "was removed or replaced" in found["directory"].text


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, Severity.FINE),
        ({"disk_free_bytes": 4, "free_in_file_bytes": 0}, Severity.WARNING),
        ({"has_reserve": False}, Severity.FAILURE),
        ({"versions_behind": 10_001}, Severity.WARNING),
        ({"replaced": "data.mdb was removed"}, Severity.FAILURE),
        ({"journal": JournalState(missing=("journal.0",))}, Severity.FAILURE),
        ({"journal": JournalState(waiting_bytes=70_000_000)}, Severity.WARNING),
        ({"journal": JournalState(generation_bytes=20, checkpoint_waits=True)}, Severity.WARNING),
        ({"journal": JournalState(generation_bytes=10, checkpoint_waits=True)}, Severity.FINE),
    ],
)
def test_each_trouble_of_a_directory_is_told(changes, severity):
    assert [one.severity for one in check_directory(replace(FINE, **changes))] == [severity]


def test_journal_and_base_of_a_directory_are_measured(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        TaskQueue.create(db, "mails").put(db, 1)
        found = {one.name: one for one in diagnose(db, watch_s=0).checks}["directory"]
        journal = found.data["journal"]
        sizes = [(tmp_path / "data" / name).stat().st_size for name in ("journal.0", "journal.1")]
        assert journal["journal_bytes"] == sum(sizes)
        assert journal["base_bytes"] == (tmp_path / "data" / "base.mdb").stat().st_size
        assert 0 < journal["waiting_bytes"] < 100_000


@pytest.mark.parametrize("name", ["base.mdb", "journal.0", "journal.1"])
def test_a_file_that_was_removed_in_use_is_told(tmp_path, name):
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        (tmp_path / "data" / name).unlink()
        found = {one.name: one for one in diagnose(db, watch_s=0).checks}["directory"]
        assert found.severity == Severity.FAILURE
        assert name in found.text


def test_a_journal_without_the_newest_commit_is_told(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        TaskQueue.create(db, "mails").put(db, 1)
        (tmp_path / "data" / "journal.1").write_bytes(bytes(1_000))
        found = {one.name: one for one in diagnose(db, watch_s=0).checks}["directory"]
        assert found.severity == Severity.FAILURE
        assert "journal.1" in found.text


def test_a_slow_commit_is_told():
    found = checks.check_latency({"read_version_s": 0.001, "commit_s": 0.6})
    assert [one.severity for one in found] == [Severity.FINE, Severity.WARNING]


def test_a_process_near_its_limit_of_files_is_told():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    (own,) = checks.see_open_files([fdbqueue.core.runtime.RealRuntime().process_id()])
    assert own.limit == soft
    assert own.count < soft
    crowded = replace(own, count=own.limit)
    assert [one.severity for one in checks.check_open_files([own, crowded])] == [Severity.WARNING]
    assert checks.see_open_files([2**31 - 1]) == []


def test_the_process_with_the_largest_share_of_its_files_is_told():
    seen = [OpenFiles(1, 50, 100), OpenFiles(2, 60, 10_000)]
    [found] = checks.check_open_files(seen)
    assert (found.severity, found.data["process_id"]) == (Severity.FINE, 1)


def test_processes_of_another_host_are_not_looked_for_here():
    """Their ids may be those of other programs on this host."""
    with fdbqueue.open("memory:") as db:
        host, own = db.runtime.host_name(), db.runtime.process_id()
        processes = ((host, 7), ("elsewhere", 8))
        look = Look(0, 0, {"a": Beat(0, 0, "", processes)})
        examination = Examination(db, DEFAULT_ROOT, Overview())
        assert examination._processes_here(look) == sorted({own, 7})


def test_a_database_that_falls_silent_between_the_looks_is_told(monkeypatch):
    """Each look gives up after limits.LOOK_TIMEOUT_S."""
    given = []

    def run(*_, timeout_s=None):
        given.append(timeout_s)
        raise FDBError(1031)

    monkeypatch.setattr(diagnosis, "run", run)
    with fdbqueue.open("memory:") as db:
        found = {one.name: one for one in diagnose(db, watch_s=0).checks}
    assert set(given) == {limits.LOOK_TIMEOUT_S}
    assert found["queues"].severity == Severity.FAILURE
