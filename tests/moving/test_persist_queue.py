"""`fdbqueue import persist-queue`, on data that persist-queue itself has written."""

import datetime
import importlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from tests.moving.support import Program, contents, counts, program
from tests.support import wait_until

persistqueue = pytest.importorskip("persistqueue")

__all__ = ["program"]
ITEMS = [{"n": number, "text": "é\n\x00", "list": [1.5, None, True]} for number in range(7)]


def serializer(name: str) -> Any:
    return importlib.import_module(f"persistqueue.serializers.{name}")


def own_serializer(folder: Path, module: str) -> None:
    """A module of the user: texts with a length in front, where persist-queue needs one."""
    text = """
import json
def dump(value, stream, sort_keys=False):
    packed = json.dumps(value).encode().hex().encode()
    stream.write(b"%08d" % len(packed) + packed)
def dumps(value, sort_keys=False): return json.dumps(value).encode()[::-1]
def load(stream): return json.loads(bytes.fromhex(stream.read(int(stream.read(8))).decode()))
def loads(raw): return json.loads(raw[::-1])
"""
    (folder / f"{module}.py").write_text(text)


# -- the file queue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pickle", "json", "msgpack"])
def test_a_file_queue_comes_in_order_without_what_is_done(
    program: Program, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "old"
    queue = persistqueue.Queue(str(folder), chunksize=3, serializer=serializer(name))
    for item in ITEMS:
        queue.put(item)
    for _ in range(4):
        queue.get()
    queue.task_done()
    queue.get()  # not done: there again after a restart
    del queue
    before = list(contents(folder))
    command = ("persist-queue", folder, "jobs", "--serializer", name, "--create")
    assert program(*command) == (0, [counts(3)], "")
    assert program(*command) == (0, [counts(0, moved_earlier=3)], "")
    assert program.tasks("jobs") == ITEMS[4:]
    assert list(contents(folder)) == before


def test_an_import_goes_on_with_items_that_were_put_since(program: Program, tmp_path: Path) -> None:
    """Also those in the chunk that it has seen before."""
    folder, command = tmp_path / "old", ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json")
    queue = persistqueue.Queue(str(folder), chunksize=5, serializer=serializer("json"))
    for number in range(3):
        queue.put(number)
    assert program(*command, "--create")[1] == [counts(3)]
    for number in range(3, 7):
        queue.put(number)
    assert program(*command)[1] == [counts(4, moved_earlier=3)]
    assert program.tasks("jobs") == list(range(7))


def test_an_unreadable_item_costs_its_place_only(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    queue = persistqueue.Queue(str(folder), serializer=serializer("json"))
    for number in range(3):
        queue.put({"n": number})
    path = folder / "q00000"
    path.write_bytes(path.read_bytes().replace(b'"n": 1', b'"n": }'))
    status, (row, total), err = program("persist-queue", folder, "jobs", "--serializer", "json", "--create")
    assert (status, total, row["item"]) == (1, counts(2, skipped=1), "item 1 of q00000")
    assert "1 skipped: the next import tries them again" in err
    assert program.tasks("jobs") == [{"n": 0}, {"n": 2}]
    path.write_bytes(path.read_bytes().replace(b'"n": }', b'"n": 1'))
    assert program("persist-queue", folder, "jobs", "--serializer", "json")[1] == [counts(1, moved_earlier=2)]
    assert program.tasks("jobs") == [{"n": 0}, {"n": 2}, {"n": 1}]


def test_equal_items_in_new_files_are_another_queue(program: Program, tmp_path: Path) -> None:
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json", "--create")
    persistqueue.Queue(str(tmp_path / "old"), serializer=serializer("json")).put("x")
    assert program(*command)[1] == [counts(1)]
    (tmp_path / "old").rename(tmp_path / "older")
    persistqueue.Queue(str(tmp_path / "old"), serializer=serializer("json")).put("x")
    status, _, err = program(*command)
    assert (status, "--source" in err) == (2, True)


def test_the_last_item_may_be_mended(program: Program, tmp_path: Path) -> None:
    """It was skipped: its bytes are not those that the progress has seen."""
    folder, command = tmp_path / "old", ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json")
    queue = persistqueue.Queue(str(folder), serializer=serializer("json"))
    for item in ({"n": 0}, {"n": 1}):
        queue.put(item)
    path = folder / "q00000"
    path.write_bytes(path.read_bytes().replace(b'"n": 1', b'"n": }'))
    assert program(*command, "--create")[1][-1] == counts(1, skipped=1)
    path.write_bytes(path.read_bytes().replace(b'"n": }', b'"n": 1'))
    assert program(*command) == (0, [counts(1, moved_earlier=1)], "")
    assert program.tasks("jobs") == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("name", ["link", "other/../old"])
@pytest.mark.parametrize("kind", ["Queue", "SQLiteQueue"])
def test_another_path_of_an_old_queue_doubles_nothing(
    program: Program, tmp_path: Path, kind: str, name: str
) -> None:
    getattr(persistqueue, kind)(str(tmp_path / "old"), serializer=serializer("json")).put(1)
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    command = ("jobs", "--serializer", "json", "--create")
    assert program("persist-queue", tmp_path / "old", *command)[1] == [counts(1)]
    assert program("persist-queue", f"{tmp_path}/{name}", *command)[1] == [counts(0, moved_earlier=1)]


def test_a_chunk_that_ends_early_is_reported_item_by_item(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    queue = persistqueue.Queue(str(folder), chunksize=4)
    for number in range(6):
        queue.put([number])
    path = folder / "q00000"
    path.write_bytes(path.read_bytes()[:-20])
    status, rows, _ = program("persist-queue", folder, "jobs", "--serializer", "pickle", "--create")
    assert (status, rows[-1]) == (1, counts(4, skipped=2))
    assert [row["item"] for row in rows[:-1]] == ["item 2 of q00000", "item 3 of q00000"]
    assert program.tasks("jobs") == [[0], [1], [4], [5]]


def test_a_queue_without_items_is_empty_and_no_queue_is_refused(program: Program, tmp_path: Path) -> None:
    persistqueue.Queue(str(tmp_path / "old"))
    command = ("--serializer", "pickle", "--create")
    assert program("persist-queue", tmp_path / "old", "jobs", *command) == (0, [counts(0)], "")
    (tmp_path / "none").mkdir()
    status, _, err = program("persist-queue", tmp_path / "none", "jobs", *command)
    assert (status, "neither data.db nor" in err) == (2, True)


# -- the SQLite queues ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pickle", "json", "msgpack"])
@pytest.mark.parametrize("kind", ["FIFOSQLiteQueue", "UniqueQ"])
def test_an_sqlite_queue_comes_in_order(program: Program, tmp_path: Path, kind: str, name: str) -> None:
    queue = getattr(persistqueue, kind)(str(tmp_path / "old"), serializer=serializer(name))
    for item in ITEMS:
        queue.put(item)
    queue.get()
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", name)
    assert program(*command, "--create", "--dry-run") == (0, [counts(6)], "")
    assert program(*command)[0] == 2, "the dry run has made no queue"
    assert program(*command, "--create") == (0, [counts(6)], "")
    assert program.tasks("jobs") == ITEMS[1:]


@pytest.mark.parametrize("kind", ["SQLiteAckQueue", "UniqueAckQ"])
def test_an_ack_queue_comes_by_states(program: Program, tmp_path: Path, kind: str) -> None:
    queue = getattr(persistqueue, kind)(str(tmp_path / "old"), serializer=serializer("json"))
    for number in range(6):
        queue.put(number)
    queue.ack(queue.get())
    queue.ack_failed(queue.get())
    queue.get()  # un-acked
    queue.nack(queue.get())  # ready again
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json")
    assert program(*command, "--create") == (0, [counts(5, buried=1, left_out=1)], "")
    assert program(*command) == (0, [counts(0, moved_earlier=5)], "")
    assert (program.tasks("jobs"), program.tasks("jobs", "!")) == ([2, 3, 4, 5], [1])
    assert program(*command, "--source", "plain", "--create")[0] == 0


def test_a_plain_queue_leaves_failed_items_out(program: Program, tmp_path: Path) -> None:
    queue = persistqueue.SQLiteAckQueue(str(tmp_path / "old"), serializer=serializer("json"))
    for number in range(3):
        queue.put(number)
    queue.ack_failed(queue.get())
    make(program, lambda db: fdbqueue.Queue.named(db, "jobs"))
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json")
    assert program(*command)[1] == [counts(2, left_out=1)]
    assert program.items("jobs") == [1, 2]


def test_a_priority_queue_keeps_priorities(program: Program, tmp_path: Path) -> None:
    queue = persistqueue.PriorityQueue(str(tmp_path / "old"), serializer=serializer("json"))
    for number, priority in enumerate([5, 0, 5, -1, 0]):
        queue.put(number, priority=priority)
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json")
    status, (row, total), _ = program(*command, "--create")
    assert (status, row["item"], total) == (1, "row 4", counts(4, skipped=1))
    assert program.tasks("jobs") == [1, 4, 0, 2]
    make(program, lambda db: fdbqueue.TaskQueue.create(db, "fifo"))
    status, _, err = program(*command[:2], "fifo", *command[3:])
    assert (status, "pri" in err) == (2, True)


@pytest.mark.parametrize("odd", [2.5, "high"])
def test_a_priority_that_is_no_number_skips_its_item(program: Program, tmp_path: Path, odd: object) -> None:
    """SQLite stores it in a column of integers all the same."""
    queue = persistqueue.PriorityQueue(str(tmp_path / "old"), serializer=serializer("json"))
    for number, priority in enumerate([1, odd, 1]):
        queue.put(number, priority=priority)
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json", "--create")
    status, (row, total), _ = program(*command)
    assert (status, row["item"], total) == (1, "row 2", counts(2, skipped=1))
    assert repr(odd) in row["reason"]


def test_the_same_command_again_may_name_the_codec(program: Program, tmp_path: Path) -> None:
    """It was killed after it had made the queue."""
    persistqueue.SQLiteQueue(str(tmp_path / "old"), serializer=serializer("json")).put(1)
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "json", "--create", "--codec")
    assert program(*command, "msgpack") == (0, [counts(1)], "")
    assert program(*command, "msgpack") == (0, [counts(0, moved_earlier=1)], "")
    status, _, err = program(*command, "bytes")
    assert (status, "'jobs' has the codec msgpack" in err) == (2, True)


def test_a_file_with_several_queues_asks_for_the_table(program: Program, tmp_path: Path) -> None:
    folder = str(tmp_path / "old")
    for name in "ab":
        persistqueue.SQLiteQueue(folder, name=name, serializer=serializer("json")).put(name)
    persistqueue.PDict(folder, "settings")["key"] = 1
    command = ("persist-queue", f"{folder}/data.db", "jobs", "--serializer", "json", "--create")
    status, _, err = program(*command)
    assert (status, "queue_a, queue_b" in err, "dict" in err) == (2, True, False)
    assert program(*command, "--table", "queue_b")[1] == [counts(1)]
    assert program.tasks("jobs") == ["b"]


def test_a_queue_with_the_newest_first_is_refused(program: Program, tmp_path: Path) -> None:
    persistqueue.FILOSQLiteQueue(str(tmp_path / "old")).put(1)
    status, _, err = program("persist-queue", tmp_path / "old", "jobs", "--serializer", "pickle", "--create")
    assert (status, "newest item first" in err) == (2, True)


# -- serializers ----------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int
    placed: datetime.date


class Planted:
    """Its pickle calls a function when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def stored(folder: Path, raw: bytes) -> None:
    """Replace the bytes of the first item."""
    with sqlite3.connect(folder / "data.db") as connection:
        connection.execute("UPDATE queue_default SET data = ? WHERE _id = 1", (raw,))
    connection.close()


def test_a_pickle_runs_code_only_if_allowed(program: Program, tmp_path: Path) -> None:
    queue = persistqueue.SQLiteQueue(str(tmp_path / "old"))
    queue.put(Planted(tmp_path / "planted"))
    queue.put({"plain": [1, "x", None, 2.5]})
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "pickle", "--create")
    status, (row, total), _ = program(*command)
    assert (status, total, "--pickle-may-run-code" in row["reason"]) == (1, counts(1, skipped=1), True)
    assert not (tmp_path / "planted").exists()
    program(*command, "--pickle-may-run-code")
    assert (tmp_path / "planted").exists()


def test_persist_queues_own_module_loads_no_class_either(program: Program, tmp_path: Path) -> None:
    """The program names it so where it opens its queue."""
    persistqueue.SQLiteQueue(str(tmp_path / "old")).put(Planted(tmp_path / "planted"))
    command = ("persist-queue", tmp_path / "old", "jobs", "--create", "--serializer")
    status, rows, _ = program(*command, "persistqueue.serializers.pickle")
    assert (status, rows[-1]) == (1, counts(0, skipped=1))
    assert not (tmp_path / "planted").exists()


def test_a_reason_with_half_a_character_is_shown(program: Program, tmp_path: Path) -> None:
    """A pickle may name a class by any text; an item behind it comes all the same."""
    queue = persistqueue.SQLiteQueue(str(tmp_path / "old"))
    for number in range(2):
        queue.put(number)
    stored(tmp_path / "old", b"\x80\x04\x8c\x03\xed\xb3\xbf\x8c\x01c\x93.")
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "pickle", "--create")
    status, rows, _ = program(*command)
    assert (status, rows[-1]) == (1, counts(1, skipped=1))
    assert r"\udcff" in rows[0]["reason"]


def test_a_damaged_length_costs_its_item_only(program: Program, tmp_path: Path) -> None:
    """A pickle that says that it holds 2**62 bytes."""
    queue = persistqueue.SQLiteQueue(str(tmp_path / "old"))
    for number in range(2):
        queue.put(number)
    stored(tmp_path / "old", b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.")
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "pickle", "--create")
    status, (row, total), _ = program(*command)
    assert (status, total, "MemoryError" in row["reason"]) == (1, counts(1, skipped=1), True)


def test_objects_come_as_a_typed_handle_stores_them(program: Program, tmp_path: Path) -> None:
    order = Order(7, datetime.date(2026, 11, 22))
    queue = persistqueue.SQLiteQueue(str(tmp_path / "old"))
    queue.put(order)
    queue.put(("page", 3))
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", "pickle", "--pickle-may-run-code")
    status, rows, err = program(*command, "--create")
    assert (status, rows[-1], "--convert" in err) == (1, counts(0, skipped=2), True)
    assert program(*command, "--convert")[1] == [counts(2)]
    with fdbqueue.open(program.url) as db:
        assert fdbqueue.TaskQueue.open(db, "jobs", type=Order).take(db, 0).data == order  # type: ignore[union-attr]
        assert fdbqueue.TaskQueue.open(db, "jobs").take(db, 0).data == ["page", 3]  # type: ignore[union-attr]


@pytest.mark.parametrize("files", [True, False])
def test_a_module_of_the_user_reads_its_own_form(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    module = f"own_serializer_{files}"
    own_serializer(tmp_path, module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    make_queue = persistqueue.Queue if files else persistqueue.SQLiteQueue
    queue = make_queue(str(tmp_path / "old"), serializer=importlib.import_module(module))
    for item in ITEMS:
        queue.put(item)
    command = ("persist-queue", tmp_path / "old", "jobs", "--serializer", module, "--create")
    assert program(*command)[1] == [counts(len(ITEMS))]
    assert program.tasks("jobs") == ITEMS


def test_a_wrong_serializer_is_refused_before_anything_is_put(program: Program, tmp_path: Path) -> None:
    persistqueue.Queue(str(tmp_path / "old")).put(1)
    for wrong, said in (("json", "info cannot be read"), ("no_such_module", "ModuleNotFoundError")):
        status, _, err = program("persist-queue", tmp_path / "old", "jobs", "--serializer", wrong, "--create")
        assert (status, said in err) == (2, True)


def make(program: Program, made: Callable[[fdbqueue.Database], object]) -> None:
    with fdbqueue.open(program.url) as db:
        made(db)


# -- a kill ------------------------------------------------------------------------------------------------


COUNT = 3_000
INSERT = "INSERT INTO ack_queue_default (data, timestamp, status) VALUES (?, ?, 1)"


def filled(folder: Path) -> None:
    """Persist-queue commits each item: it makes the file, and one statement adds the rows."""
    persistqueue.SQLiteAckQueue(str(folder), serializer=serializer("json")).put(0)
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
