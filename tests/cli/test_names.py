"""A mistyped name or place creates no queue, no database and no file. The reference has each command."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import lmdb
import pytest
from fdb import tuple as layer

import fdbqueue
from fdbqueue import Limit, Schedule, TaskQueue, list_schedules
from fdbqueue.operate.cli.frame import cli
from fdbqueue.operate.cli.session import nearest
from tests.cli.shell import HERE, Shell, Within

# Every command on a queue, as it is typed; Q is the queue.
COMMANDS: dict[str, list[str]] = {
    "ack": ["Q", "00"],
    "alter": ["Q"],
    "aside": ["Q"],
    "bury": ["Q", "00"],
    "cancel": ["Q", "00"],
    "clear": ["Q", "--yes"],
    "complete": ["Q", "00"],
    "dead classes": ["Q"],
    "dead edit": ["Q", "00", "x"],
    "dead kick": ["Q", "00"],
    "dead list": ["Q"],
    "dead show": ["Q", "00"],
    "delete": ["Q", "00"],
    "drop": ["Q", "--yes"],
    "export": ["exported", "Q"],
    "elements add": ["Q", "x"],
    "elements export-dirq": ["Q", "here"],
    "elements get": ["Q", "00"],
    "elements import-dirq": ["Q", "."],
    "elements list": ["Q"],
    "elements purge": ["Q"],
    "elements remove": ["Q", "00"],
    "ended": ["Q"],
    "explain": ["Q", "00"],
    "fail": ["Q", "00", "no"],
    "follow": ["Q", "00"],
    "get": ["Q"],
    "import fdb-layer": ["00", "Q"],
    "import persist-queue": [".", "Q", "--serializer", "json"],
    "kick": ["Q"],
    "metrics": ["Q", "--once"],
    "partitions": ["Q"],
    "pause": ["Q"],
    "peek": ["Q"],
    "put": ["Q", "x"],
    "queues": [],
    "redrive pause": ["Q"],
    "redrive resume": ["Q"],
    "redrive run": ["Q"],
    "redrive start": ["Q"],
    "redrive status": ["Q"],
    "redrive stop": ["Q"],
    "release": ["Q", "00"],
    "change": ["Q", "--set", "pri=1"],
    "release-all": ["Q"],
    "repartition": ["Q", "2"],
    "result": ["Q", "00"],
    "resume": ["Q"],
    "size": ["Q"],
    "spread": ["Q"],
    "stats": ["Q"],
    "take": ["Q"],
    "tasks": ["Q"],
    "top": ["Q"],
    "touch": ["Q", "00"],
    "trash empty": ["Q", "--yes"],
    "trash list": ["Q"],
    "trash restore": ["Q"],
    "truncate": ["Q", "--yes"],
    "verify": ["Q"],
    "waiting": ["Q"],
    "work": ["Q", "m:f"],
}
CREATING = {"create": ["Q"], "put": ["Q", "x", "--create"], "elements add": ["Q", "x", "--create"]}
SETTING = {"limit set": ["Q", "--slots", "1"]}
"""It makes a database, and no queue."""
# Commands that name a limit, or a schedule, in place of a queue.
NAMED: dict[str, list[str]] = {
    "limit delete": ["Q"],
    "limit keys": ["Q"],
    "limit show": ["Q"],
    **{f"schedule {verb}": ["Q"] for verb in ("delete", "next", "pause", "resume", "run", "show")},
    "schedule change": ["Q", "--every", "60"],
}
GROUP = "0" * 32
# Commands that name no queue, or one that is there already, and make no database.
ON_NO_QUEUE: dict[str, list[str]] = {
    **{f"group {verb}": [GROUP] for verb in ("cancel", "close", "show", "wait")},
    **{name: [] for name in ("audit", "fleet", "group create", "group list", "limit list")},
    **{name: [] for name in ("schedule fire", "schedule list")},
    "schedule create": ["tick", "Q", "--every", "60"],
    "import file": ["exported"],
}
WITHOUT_A_PLACE = {"completion", "conformance", "dashboard", "demo", "doctor", "estimate", "serve"}
"""`doctor` tells of a place without a database: tests/cli/test_verify.py. `dashboard` and `serve` need an
extra first: tests/cli/test_dashboard.py, tests/beanstalkd."""


ALL = {**COMMANDS, **NAMED, **ON_NO_QUEUE}
"""All that need a database."""


def typed(command: str, arguments: list[str], name: str = "emials") -> list[str]:
    return [*command.split(), *(name if word == "Q" else word for word in arguments)]


def make_queues_of_other_systems(db: fdbqueue.Database) -> None:
    """Make those that COMMANDS imports, since an import reads its origin first."""
    db[b"\x00" + layer.pack((1, b"random"))] = b"item"
    with closing(sqlite3.connect("data.db")) as theirs:
        theirs.execute("CREATE TABLE queue_default (_id INTEGER PRIMARY KEY, data BLOB, timestamp FLOAT)")


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Within:
    """The program, in an empty directory without a database."""
    for folder in ("temporary", "obsolete", "00000000"):
        (tmp_path / "dirq" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "dirq")
    return Within(Shell(f"embedded:{tmp_path}/data", [], tmp_path), capfd)


def test_the_list_of_commands_is_complete() -> None:
    cli.load()
    groups = {name: group for name, group in cli.commands.items() if isinstance(group, click.Group)}
    inner = {f"{name} {command}" for name, group in groups.items() for command in group.commands}
    assert {*cli.commands, *inner} - {*groups} == {*ALL, *CREATING, *SETTING} | WITHOUT_A_PLACE


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"queues"}))
def test_an_unknown_name_fails_and_lists_the_nearest(program: Within, command: str) -> None:
    with fdbqueue.open(program.url) as db:
        TaskQueue.create(db, "emails")
        fdbqueue.Queue.named(db, "other")
        make_queues_of_other_systems(db)
    err = program.mistake(*typed(command, COMMANDS[command]))
    assert "no queue named 'emials'" in err
    assert "did you mean 'emails'?" in err
    assert "--create makes" in err or "`fdbqueue create" in err or "--create DATA` makes" in err
    with fdbqueue.open(program.url) as db:
        assert fdbqueue.list_queues(db) == ["emails", "other"]


@pytest.mark.parametrize("command", sorted(NAMED))
def test_an_unknown_limit_or_schedule_lists_the_nearest(program: Within, command: str) -> None:
    kind, _ = command.split()
    with fdbqueue.open(program.url) as db:
        TaskQueue.create(db, "emails")
        for name in ("emails", "other"):
            Limit.set(db, name, slots=1)
            Schedule.create(db, name, every=60, queue="emails")
    err = program.mistake(*typed(command, NAMED[command]))
    assert f"no {kind} named 'emials'" in err
    assert "did you mean 'emails'?" in err
    assert f"`fdbqueue {kind} {'set' if kind == 'limit' else 'create'} emials" in err
    with fdbqueue.open(program.url) as db:
        names = [[one.name for one in found] for found in (Limit.list(db), list_schedules(db))]
        assert names == [["emails", "other"]] * 2


def test_a_queue_under_an_unknown_limit_is_not_made(program: Within) -> None:
    with fdbqueue.open(program.url) as db:
        Limit.set(db, "emails", slots=1)
    status, _, err = program.run("create", "q", "--limit", "emials")
    assert (status, "did you mean 'emails'?" in err) == (2, True)
    with fdbqueue.open(program.url) as db:
        assert fdbqueue.list_queues(db) == []


@pytest.mark.parametrize("verb", ["cancel", "close", "show", "wait"])
def test_an_unknown_group_is_told(program: Within, verb: str) -> None:
    program.run("create", "emails")
    status, out, err = program.run("group", verb, GROUP)
    assert (status, out, f"There is no group {GROUP}" in err) == (1, "", True)
    assert program.run("group", verb, "emials")[0] == 2  # no id


def test_a_schedule_of_an_unknown_queue_lists_the_nearest(program: Within) -> None:
    program.run("create", "emails")
    err = program.mistake("schedule", "create", "tick", "emials", "--every", "60")
    assert ("no queue named 'emials'" in err, "did you mean 'emails'?" in err) == (True, True)


def test_into_an_unknown_queue_fails_before_a_command_runs(program: Within) -> None:
    program.run("create", "emails")
    err = program.mistake("work", "emails", "--exec", "--into", "reslts", "--", "true")
    assert ("no queue named 'reslts'" in err, "--create makes" in err) == (True, True)
    refused = program.mistake("work", "emails", "--exec", "--create", "--", "true")
    assert "--create is for the queue of --into" in refused


def test_create_makes_the_queue_of_into(shell: Shell, capfd: pytest.CaptureFixture[str]) -> None:
    with fdbqueue.open(shell.url) as db:
        TaskQueue.create(db, "q", root=shell.space).put(db, "x")
    command = ("--exec", "--until-empty", "--processes", "1", "--into", "r", "--create", "--", "echo", "{}")
    assert shell.run("work", "q", *command)[0] == 0
    assert Within(shell, capfd).get("r") == ["x"]


@pytest.mark.parametrize("command", sorted(CREATING))
def test_create_makes_the_database_and_the_queue(program: Within, command: str) -> None:
    for _ in range(1 if command == "create" else 2):
        assert program.run(*typed(command, CREATING[command], "emails"))[0] == 0
    assert program.run("queues")[1].startswith("emails\t")


@pytest.mark.parametrize("command", sorted(ALL))
def test_a_place_without_a_database_is_told_and_stays(program: Within, tmp_path: Path, command: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root")
    for place in ("etc", "etc/passwd", "nowhere"):
        program.where = ["--url", f"embedded:{tmp_path}/{place}"]
        err = program.mistake(*typed(command, ALL[command]))
        assert err == f"fdbqueue: there is no database at embedded:{tmp_path}/{place}; {hint_of(command)}\n"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["passwd"]


def hint_of(command: str) -> str:
    """What the refusal says about a new database."""
    if command == "import fdb-layer":
        return "the old queue and QUEUE are in the same one: name it with --url"
    if has_create(command):
        return "--create makes one"
    maker = "elements add emials --create DATA" if command.startswith("elements") else "create QUEUE"
    return f"`fdbqueue {maker}` makes one"


def has_create(command: str) -> bool:
    """True if --create of the command makes the database. `work` makes the queue of --into in one."""
    cli.load()
    group: click.Command = cli
    for word in command.split():
        assert isinstance(group, click.Group)
        group = group.commands[word]
    return command != "work" and any("--create" in one.opts for one in group.params)


@pytest.mark.parametrize(("command", "arguments"), sorted({**ALL, **CREATING, **SETTING}.items()))
def test_a_private_database_is_refused(
    program: Within, monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str]
) -> None:
    """Its items would be lost at the end of the command."""
    program.where = []
    monkeypatch.setenv("FDBQUEUE_URL", "memory:")
    status, out, err = program.run(*typed(command, arguments))
    assert (status, out) == (2, "")
    assert err == "fdbqueue: memory: ends with the command: use embedded:PATH, or fdb: for a cluster\n"


def test_a_file_is_not_made_a_database(program: Within, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")
    program.where = ["--url", f"embedded:{tmp_path}/passwd"]
    said = f"fdbqueue: {tmp_path}/passwd cannot be opened: it is a file, and no directory\n"
    assert program.run("create", "q") == (2, "", said)


def test_a_database_of_another_program_is_left_alone(program: Within, tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "data")) as theirs, theirs.begin(write=True) as txn:
        txn.put(b"their", b"data")
    for command in ("queues", "create"):
        status, _, err = program.run(*typed(command, {**COMMANDS, **CREATING}[command]))
        assert (status, "it is the LMDB database of another program" in err) == (2, True)
    with lmdb.open(str(tmp_path / "data")) as theirs, theirs.begin() as txn:
        assert list(txn.cursor()) == [(b"their", b"data")]


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch, program: Within) -> None:
    program.where = []
    for name in ("FDBQUEUE_URL", "FDB_CLUSTER_FILE"):
        monkeypatch.setenv(name, "")
    assert program.run("create", "q")[0] == 0
    assert "fdbqueue-data" in os.listdir()


def test_open_without_create_raises_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(fdbqueue.FdbQueueError, match="no database at"):
        fdbqueue.open(f"embedded:{tmp_path}/data", create=False)
    assert list(tmp_path.iterdir()) == []
    fdbqueue.open(f"embedded:{tmp_path}/data").close()
    fdbqueue.open(f"embedded:{tmp_path}/data", create=False).close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("emials", ["emails"]),
        ("EMAILS", ["emails"]),
        ("mail", ["emails"]),
        ("emails-2", ["emails", "Emails-20"]),
        ("thumb", ["thumbs"]),
        ("unlike", []),
    ],
)
def test_the_nearest_names_are_listed_by_likeness(name: str, expected: list[str]) -> None:
    found = nearest(name, ["emails", "Emails-20", "thumbs", "q"])
    assert found[: len(expected)] == expected or sorted(found) == sorted(expected)


@pytest.mark.parametrize("path", ["a/" * 3_000, "a\x00b"], ids=["long", "NUL"])
def test_an_impossible_path_makes_no_directory(
    program: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The directory is not made, not even the first part of its path."""
    monkeypatch.chdir(tmp_path)
    program.run("elements", "add", "e", "x", "--create")
    before = sorted(tmp_path.iterdir())
    status, _, err = program.run("elements", "export-dirq", "e", path)
    assert status == 2
    assert "is no path of at most 4096 bytes" in err
    assert sorted(tmp_path.iterdir()) == before


def test_the_reference_has_the_help_texts() -> None:
    """`make docs` rewrites the reference."""
    check = [sys.executable, HERE / "docs" / "cli_reference.py", "--check"]
    assert subprocess.run(check, check=False).returncode == 0
