"""`fdbqueue elements`, as a shell meets it."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from dirq.queue import Queue as DirectoryQueue
from dirq.QueueSimple import QueueSimple

import fdbqueue
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run

SCHEMA = "body=string,header=table?,blob=binary?"


class Shell:
    """Runs the program within this process: tests/test_cli.py does it with processes."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.url = f"embedded:{folder}/data"
        self._capture = capture

    def __call__(self, *arguments: Any) -> tuple[int, list[str], str]:
        """Of a command of `elements`: what `program` gives."""
        return self.program("elements", *arguments)

    def program(self, *arguments: Any) -> tuple[int, list[str], str]:
        """Status, lines of standard output, and standard error without its beginning."""
        self._capture.readouterr()
        status = run(cli, ["--url", self.url, *map(str, arguments)])
        out, err = self._capture.readouterr()
        assert err == "" or err.startswith("fdbqueue: ")
        return status, out.splitlines(), err.removeprefix("fdbqueue: ")


@pytest.fixture
def shell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capfd)


def test_add_list_get_remove(shell: Shell) -> None:
    status, names, err = shell("add", "q", "--create", "one", "zwei ü", "3")
    assert (status, len(names), err) == (0, 3, "")
    assert shell("list", "q") == (0, names, "")
    assert shell("list", "q", "-n", 2) == (0, names[:2], "")
    assert shell("get", "q", *names) == (0, ['"one"', '"zwei ü"', '"3"'], "")
    assert shell("remove", "q", *names[:2]) == (0, [], "")
    assert shell("list", "q") == (0, names[2:], "")


def test_json_of_elements_is_an_object_a_line(shell: Shell) -> None:
    _, (line,), _ = shell("add", "q", "--create", "--json", "zwei")
    name = json.loads(line)["name"]
    assert shell("list", "q") == (0, [name], "")
    assert shell("list", "q", "--json") == (0, [line], "")
    _, (told,), _ = shell("get", "q", name, "--json")
    assert json.loads(told) == {"name": name, "data": "zwei"}


def test_json_of_moves_tells_the_elements_that_stay(shell: Shell, tmp_path: Path) -> None:
    _, names, _ = shell("add", "q", "--create", "one", "two")
    with fdbqueue.open(shell.url) as db:
        assert fdbqueue.SimpleElementQueue.named(db, "q").lock(db, names[0])
    status, lines, err = shell("export-dirq", "q", tmp_path / "there", "--json")
    stays, counts = map(json.loads, lines)
    assert (status, err) == (1, "1 not moved\n")
    assert (stays["name"], stays["reason"]) == (names[0], "it is locked")
    assert counts == {"queue": "q", "moved": 1, "left": 1}
    status, lines, _ = shell("import-dirq", "again", tmp_path / "there", "--create", "--json")
    assert (status, json.loads(lines[0])) == (0, {"queue": "again", "moved": 1, "left": 0})


def test_an_element_that_is_not_there_is_called_so(shell: Shell) -> None:
    _, (name,), _ = shell("add", "q", "--create", "x")
    shell("remove", "q", name)
    for command in (["get"], ["remove"], ["remove", "--locked"]):
        status, out, err = shell(command[0], "q", *command[1:], name)
        assert (status, out) == (1, [])
        assert name in err
        assert err.endswith(": there is no such element\n")


def test_a_schema_makes_pieces(shell: Shell) -> None:
    data = {"body": "hello", "header": {"a": "b"}}
    _, (name,), _ = shell("add", "q", "--create", "--schema", SCHEMA, json.dumps(data))
    assert shell("get", "q", name) == (0, [json.dumps(data, separators=(",", ":"))], "")
    with fdbqueue.open(shell.url) as db:
        queue = fdbqueue.ElementQueue.named(db, "q", create=False)
        blob = queue.add(db, {"body": "x", "blob": b"\x00\xff"})
    _, (line,), _ = shell("get", "q", blob)
    assert json.loads(line)["blob"] == base64.b64encode(b"\x00\xff").decode()


@pytest.mark.parametrize("data", ["text", "{}", '{"body": 1}', '{"body": "x", "other": "y"}', '{"body'])
def test_data_that_does_not_fit_is_a_mistake_and_not_added(shell: Shell, data: str) -> None:
    shell("add", "q", "--create", "--schema", SCHEMA, '{"body": "first"}')
    status, out, err = shell("add", "q", "--create", data)
    assert (status, out, err.count("\n")) == (2, [], 1)
    assert len(shell("list", "q")[1]) == 1


@pytest.mark.parametrize("schema", ["body", "body=text", "a=string?", "=string"])
def test_a_schema_that_is_none_is_a_mistake(shell: Shell, schema: str) -> None:
    status, _, err = shell("add", "q", "--create", "--schema", schema, "{}")
    assert status == 2
    assert "schema" in err


def test_a_schema_may_be_given_to_read_with(shell: Shell, tmp_path: Path) -> None:
    real = DirectoryQueue(str(tmp_path / "dirq"), schema={"body": "string"})
    name = real.add({"body": "x"})
    assert shell("import-dirq", "q", "--create", tmp_path / "dirq") == (0, [], "1 moved\n")
    status, _, err = shell("get", "q", name)
    assert (status, err.startswith("unknown schema")) == (1, True)
    assert shell("get", "q", name, "--schema", "body=string") == (0, ['{"body":"x"}'], "")


def test_single_byte_strings_have_no_schema(shell: Shell) -> None:
    shell("add", "q", "--create", "x")
    assert shell("add", "q", "--create", "--schema", SCHEMA, "{}")[0] == 2
    assert len(shell("list", "q")[1]) == 1


def test_a_locked_element_is_refused_until_purged(shell: Shell) -> None:
    _, (name,), _ = shell("add", "q", "--create", "x")
    with fdbqueue.open(shell.url) as db:
        fdbqueue.SimpleElementQueue.named(db, "q").lock(db, name)
    for command in ("get", "remove"):
        status, out, err = shell(command, "q", name)
        assert (status, out, err.endswith(f"{name}: it is locked\n")) == (1, [], True)
    assert shell("purge", "q") == (0, [], "")
    assert shell("get", "q", name)[0] == 1
    assert shell("purge", "q", "--maxlock", "0.000001") == (0, [], "")
    assert shell("get", "q", name) == (0, ['"x"'], "")
    with fdbqueue.open(shell.url) as db:
        fdbqueue.SimpleElementQueue.named(db, "q").lock(db, name)
    assert shell("remove", "q", "--locked", name) == (0, [], "")
    assert shell("remove", "q", "--locked", name)[0] == 1
    assert shell("list", "q") == (0, [], "")


def test_a_queue_that_is_not_there_or_of_another_kind_is_refused(shell: Shell) -> None:
    with fdbqueue.open(shell.url) as db:
        fdbqueue.Queue.named(db, "plain")
    for command in (["list"], ["get", "x"], ["remove", "x"], ["purge"]):
        status, out, err = shell(command[0], "nowhere", *command[1:])
        assert status == 2
        assert out == []
        assert "no queue named 'nowhere'" in err
        assert shell(command[0], "plain", *command[1:])[0] == 2


@pytest.mark.parametrize("schema", [(), ("--schema", "body=string")])
def test_an_element_queue_is_counted_and_dropped_as_others_are(shell: Shell, schema: tuple[str, ...]) -> None:
    data = ['{"body":"a"}', '{"body":"b"}']
    shell("add", "q", "--create", *schema, *data)
    kind = "elements" if schema else "simple-elements"
    assert shell.program("queues") == (0, [f"q\t{kind}\t2\t\t\t\t\t"], "")
    assert "items\t2" in shell.program("stats", "q")[1]
    asked = "drop would remove 'q' and the 2 items in it: confirm with --yes\n"
    assert shell.program("drop", "q") == (1, [], asked)
    assert shell.program("drop", "q", "--yes") == (0, [], "'q' is gone\n")
    with fdbqueue.open(shell.url) as db:
        assert list(db.get_range_startswith(Registry(DEFAULT_ROOT).keys.contents(1).key())) == []


def test_import_and_export(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "dirq"
    real = DirectoryQueue(str(path), schema={"body": "string", "header": "table?"})
    names = [real.add({"body": str(number)}) for number in range(3)]
    real.lock(names[1])
    status, _, err = shell("import-dirq", "q", "--create", path, "--schema", SCHEMA)
    assert status == 1
    assert f"{names[1]} stays: it is locked" in err
    assert "2 moved" in err
    assert shell("list", "q")[1] == [names[0], names[2]]
    assert shell("get", "q", names[0]) == (0, ['{"body":"0"}'], "")
    assert shell("export-dirq", "q", path) == (0, [], "2 moved\n")
    assert list(real) == names
    assert shell("list", "q") == (0, [], "")


def test_import_and_export_of_single_byte_strings(shell: Shell, tmp_path: Path) -> None:
    real = QueueSimple(str(tmp_path / "dirq"))
    name = real.add(b"\xff")
    assert shell("import-dirq", "q", "--create", tmp_path / "dirq") == (0, [], "1 moved\n")
    assert json.loads(shell("get", "q", name)[1][0]) == base64.b64encode(b"\xff").decode()
    assert shell("export-dirq", "q", tmp_path / "new") == (0, [], "1 moved\n")
    there = QueueSimple(str(tmp_path / "new"))
    assert there.lock(there.first())
    assert there.get(name) == b"\xff"


def test_a_folder_that_is_no_directory_queue_is_a_mistake(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    for path in (tmp_path / "mail", tmp_path / "nowhere"):
        status, _, err = shell("import-dirq", "q", "--create", path)
        assert status == 2
        assert err.count("\n") == 1
