"""A file that is not a whole export is refused before anything is written."""

import fcntl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.core.errors import ExportInUse, ExportRefused, ExportUnusable, ImportUnfinished, UnknownKind
from fdbqueue.core.registry import Registry
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import FinishedFile
from fdbqueue.tasks import options
from tests.exports.support import export, imported, target

__all__ = ["target"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("export") / "file"
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "jobs", "utube")
        for number in range(5):
            queue.put(db, number, key=number % 2)
        queue.pause(db)
        export(db, path)
    return path.read_bytes()


def reason_of(path: Path) -> str:
    with pytest.raises(ExportUnusable) as error, FinishedFile(path):
        pass
    return str(error.value)


@settings(max_examples=30)
@given(data=st.data())
def test_no_damage_goes_unseen(
    whole: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A changed byte, a missing part, and a part twice."""
    path = tmp_path_factory.mktemp("damaged") / "file"
    at = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(at + 1, min(len(whole), at + 300)))
    changed = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    path.write_bytes(
        data.draw(
            st.sampled_from(
                [
                    whole[:at] + changed + whole[at + 1 :],
                    whole[:at] + whole[end:],
                    whole[:end] + whole[at:],
                    whole[:at],
                ]
            )
        )
    )
    reason_of(path)


def test_lines_in_another_order_are_refused(whole: bytes, tmp_path: Path) -> None:
    lines = whole.splitlines(keepends=True)
    lines[2:4] = lines[3:1:-1]
    (tmp_path / "file").write_bytes(b"".join(lines))
    assert "damaged or cut short behind line 2" in reason_of(tmp_path / "file")


def test_the_reasons_are_told_apart(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something else, that is longer than a line")
    assert "no export" in reason_of(path)
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert "unfinished" in reason_of(path)
    path.write_bytes(whole[:-10])
    assert "cut short" in reason_of(path)


def test_a_file_that_changes_leaves_an_unfinished_queue(
    whole: bytes, tmp_path: Path, target: Database
) -> None:
    """The next import with the right file finishes it."""
    path = tmp_path / "file"
    path.write_bytes(whole)
    with FinishedFile(path) as file:
        path.write_bytes(whole[: len(whole) // 2])
        steps = fdbqueue.operate.exports.importing.Import(target, Registry(), file).run()
        with pytest.raises(ExportUnusable, match="changes"):
            list(steps)
    with pytest.raises(ImportUnfinished):
        TaskQueue.open(target, "jobs")
    path.write_bytes(whole)
    imported(target, path)
    assert TaskQueue.open(target, "jobs").statistics(target)["tasks"]["ready"] == 5


def test_a_queue_of_an_unknown_kind_is_refused_first(
    whole: bytes, tmp_path: Path, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that no import can finish would take its name."""
    (tmp_path / "file").write_bytes(whole)
    monkeypatch.delitem(options._kinds, "utube")
    with pytest.raises(UnknownKind):
        imported(target, tmp_path / "file")
    assert list(Registry().names(target)) == []


def test_another_file_is_never_overwritten(tmp_path: Path, target: Database) -> None:
    (tmp_path / "letter").write_text("Dear reader, this is no export at all.")
    with pytest.raises(ExportUnusable, match="no export"):
        export(target, tmp_path / "letter")
    assert (tmp_path / "letter").read_text().startswith("Dear reader")


def test_an_export_of_other_queues_is_not_continued(tmp_path: Path, target: Database) -> None:
    TaskQueue.create(target, "jobs").pause(target)
    export(target, tmp_path / "file")
    with pytest.raises(ExportUnusable, match="other queues"):
        export(target, tmp_path / "file", "jobs")
    assert export(target, tmp_path / "file") == {}


def test_two_exports_do_not_share_a_file(tmp_path: Path, target: Database) -> None:
    TaskQueue.create(target, "jobs").pause(target)
    steps = Export(target, Registry()).run(tmp_path / "file")
    next(steps)
    with pytest.raises(ExportInUse):
        export(target, tmp_path / "file")


def test_a_refused_export_keeps_the_file_that_it_found(tmp_path: Path, target: Database) -> None:
    queue, file = TaskQueue.create(target, "jobs"), tmp_path / "export"
    queue.put(target, 1)
    queue.pause(target)
    steps = Export(target, Registry()).run(file)
    next(steps)
    steps.close()
    before = file.read_bytes()
    queue.resume(target)
    with pytest.raises(ExportRefused):
        export(target, file)
    assert file.read_bytes() == before


def test_no_export_is_written_without_a_name(
    tmp_path: Path, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may discard the file between its opening and its lock here."""
    file = tmp_path / "export"
    monkeypatch.setattr(fcntl, "flock", lambda *_: file.unlink())
    with pytest.raises(ExportInUse):
        export(target, file)


def test_a_queue_that_is_created_anew_ends_its_export(tmp_path: Path, target: Database) -> None:
    queue = TaskQueue.create(target, "jobs")
    queue.pause(target)
    steps = Export(target, Registry()).run(tmp_path / "file")
    next(steps)
    queue.drop(target)
    TaskQueue.create(target, "jobs").pause(target)
    with pytest.raises(fdbqueue.ExportRefused, match="changed"):
        list(steps)


@pytest.mark.parametrize("at", [40, 700])
def test_a_damaged_finished_export_is_left_as_it_is(
    whole: bytes, at: int, tmp_path: Path, target: Database
) -> None:
    """Were it cut and begun again, a queue that is gone by now would be lost."""
    damaged = whole[:at] + b"#" + whole[at + 1 :]
    (tmp_path / "file").write_bytes(damaged)
    with pytest.raises(ExportUnusable, match="damaged"):
        export(target, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == damaged
