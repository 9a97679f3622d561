"""`fdbqueue export` and `fdbqueue import file`, as an operator uses them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Limit, TaskQueue, verify
from fdbqueue.core.registry import IMPORTING, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run
from fdbqueue.operate.cli.exports import COUNTED
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import Section
from fdbqueue.tasks.limits.parking import Settling
from fdbqueue.tasks.limits.rule import keys_of


class Program:
    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.url = f"embedded:{folder}/data"
        self._capture = capture

    def __call__(self, *arguments: object, url: str = "") -> tuple[int, str, str]:
        """Return the status, standard output and standard error."""
        self._capture.readouterr()
        status = run(cli, ["--url", url or self.url, *map(str, arguments)])
        out, err = self._capture.readouterr()
        return status, out, err


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Program:
    program = Program(tmp_path, capfd)
    with fdbqueue.open(program.url) as db:
        queue = TaskQueue.create(db, "jobs")
        queue.put_many(db, [1, 2, 3])
    return program


def row(**counts: Any) -> dict[str, Any]:
    return {"queue": "jobs", **dict.fromkeys(COUNTED, 0), **counts}


def test_an_operator_moves_a_queue(program: Program, tmp_path: Path) -> None:
    there, file = f"embedded:{tmp_path}/there", tmp_path / "export"
    status, _, err = program("export", file)
    assert (status, "not paused: `fdbqueue pause`" in err) == (1, True)
    program("pause", "jobs")
    assert program("export", file) == (0, "", "fdbqueue: 'jobs': 3 tasks\n")
    again = "fdbqueue: nothing to do: the file is a finished export; name another file for a new one\n"
    assert program("export", file) == (0, "", again)
    status, _, err = program("import", "file", file, url=there)
    assert (status, "no database" in err) == (2, True)
    told = program("import", "file", file, "--create", url=there)
    assert told == (0, "", "fdbqueue: 'jobs': 3 tasks\n")
    assert program("import", "file", file, url=there) == (0, "", "fdbqueue: 'jobs': imported earlier\n")
    program("resume", "jobs", url=there)
    with fdbqueue.open(there) as db:
        assert [task.data for task in TaskQueue.open(db, "jobs").tasks(db, "r", 9)] == [1, 2, 3]


def test_the_counts_are_told_as_json(program: Program, tmp_path: Path) -> None:
    there, file = f"embedded:{tmp_path}/there", tmp_path / "export"
    _, out, _ = program("export", file, "jobs", "--in-use", "--json")
    assert json.loads(out) == row(tasks=3)
    for is_earlier in (False, True):
        _, out, _ = program("import", "file", file, "--create", "--json", url=there)
        assert json.loads(out) == {**row(**({} if is_earlier else {"tasks": 3})), "earlier": is_earlier}


def test_a_damaged_file_is_told_and_makes_no_queue(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "export"
    program("export", file, "--in-use")
    file.write_bytes(file.read_bytes()[:-3])
    status, _, err = program("import", "file", file, "--create", url=f"embedded:{tmp_path}/there")
    assert (status, "damaged or cut short" in err) == (2, True)
    with fdbqueue.open(f"embedded:{tmp_path}/there") as db:
        assert fdbqueue.list_queues(db) == []


def test_a_queue_that_is_not_in_the_file_is_told(program: Program, tmp_path: Path) -> None:
    program("export", tmp_path / "export", "--in-use")
    status, _, err = program("import", "file", tmp_path / "export", "job")
    assert (status, "'job' is not in" in err, "did you mean 'jobs'?" in err) == (2, True, True)


def test_an_export_to_standard_output_is_refused(program: Program) -> None:
    status, _, err = program("export", "-", "--in-use")
    assert (status, "needs one" in err, Path("-").exists()) == (2, True, False)


def test_a_refused_export_leaves_no_new_file(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "export"
    assert (program("export", file, "jobs")[0], file.exists()) == (1, False)
    file.touch()
    assert (program("export", file, "jobs")[0], file.stat().st_size) == (1, 0)
    program("pause", "jobs")
    assert program("export", file) == (0, "", "fdbqueue: 'jobs': 3 tasks\n")


def test_an_unfinished_import_is_told_and_can_be_dropped(program: Program) -> None:
    with fdbqueue.open(program.url) as db:
        Registry().create(db, "half", IMPORTING, {})
    _, out, err = program("verify", "half")
    assert "not whole yet: run `fdbqueue import file`" in out + err
    status, _, err = program("stats", "half")
    assert (status, "not whole yet" in err) == (2, True)
    assert program("drop", "half", "--yes")[0] == 0
    with fdbqueue.open(program.url) as db:
        assert fdbqueue.list_queues(db) == ["jobs"]


def test_a_dropped_import_leaves_no_key_of_a_limit(program: Program) -> None:
    """Its tasks name keys, and until it is whole its definition tells no limits."""
    with fdbqueue.open(program.url) as db:
        Limit.set(db, "tenant", slots=1, per_key=True)
        queue = TaskQueue.create(db, "half", task_limits=["tenant"])
        for number in range(3):
            queue.put(db, number, limits={"tenant": number})
        half = replace(queue._shape.definition, kind=IMPORTING, options={})
        db.set(queue._shape.root.definition("half"), half.to_bytes())
    assert program("drop", "half", "--yes")[0] == 0
    with fdbqueue.open(program.url) as db:
        settling = Settling(RootKeys(DEFAULT_ROOT).prefix, keys_of("tenant", DEFAULT_ROOT))
        while fdbqueue.core.database.run(db, lambda tr: settling.walk(tr, db.runtime.now_us())):
            pass
        assert verify(db).findings == ()


def test_a_damaged_task_is_left_out_and_told(program: Program, tmp_path: Path) -> None:
    with fdbqueue.open(program.url) as db:
        queue = TaskQueue.open(db, "jobs")
        (task,) = queue.tasks(db, "r", 1)
        db.set(queue._shape.keys.task(fdbqueue.tasks.stored.records.id_bytes(task.id)), b"damaged")
    status, _, err = program("export", tmp_path / "export", "--in-use")
    assert (status, "1 unreadable, and left out" in err, "fdbqueue verify" in err) == (1, True, True)


def test_an_unreadable_limit_is_left_out_and_told(program: Program, tmp_path: Path) -> None:
    with fdbqueue.open(program.url) as db:
        name_an_unreadable_limit(db)
    status, _, err = program("export", tmp_path / "text", "limited", "--in-use")
    assert (status, "fdbqueue verify" in err) == (1, True)
    assert "'limited': 1 task, 1 unreadable, and left out" in err
    status, out, _ = program("export", tmp_path / "json", "limited", "--in-use", "--json")
    assert (status, json.loads(out)) == (1, {**row(tasks=1, unreadable=1), "queue": "limited"})


def test_an_export_that_goes_on_tells_its_unreadable_limit(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit was set anew meanwhile, and the file is without it all the same."""
    with fdbqueue.open(program.url) as db:
        name_an_unreadable_limit(db)
        steps = Export(db, Registry(), ["limited"], in_use=True).run(tmp_path / "export")
        with monkeypatch.context() as patch:
            patch.setattr(Section, "batch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(steps)
        Limit.set(db, "api", slots=1)
    status, _, err = program("export", tmp_path / "export", "limited", "--in-use")
    assert (status, "1 unreadable, and left out" in err) == (1, True)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def name_an_unreadable_limit(db: Database) -> None:
    Limit.set(db, "api", slots=1)
    TaskQueue.create(db, "limited", limits=["api"]).put(db, 1)
    db.set(keys_of("api", DEFAULT_ROOT).row, b"damaged")
