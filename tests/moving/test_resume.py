"""An import that is killed, doubted or doubled: started again, it loses nothing and doubles nothing."""

import importlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import ImportOvertaken, OriginChanged, QueueFull, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.registry import Registry
from fdbqueue.embedded import FDBError
from fdbqueue.operate.imports import Import, Progress, ProgressKeys, Reading
from fdbqueue.operate.origins import Origin, Table, Tasks, serializer_named
from tests.queue_support import faulty
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED, begin, error_code

persistqueue = pytest.importorskip("persistqueue")

JSON = importlib.import_module("persistqueue.serializers.json")
COUNT = 23


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_BATCH_ITEMS", 4)


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as database:
        yield database


@pytest.fixture
def origin(tmp_path: Path) -> Table:
    """A queue of numbers, of which every seventh cannot be read."""
    queue = filled(tmp_path / "old", COUNT)
    broken(queue)
    return Table(tmp_path / "old" / "data.db", None, serializer_named("json"))


def filled(folder: Path, count: int) -> Path:
    queue = persistqueue.SQLiteAckQueue(str(folder), serializer=JSON)
    for number in range(count):
        queue.put(number)
    return folder / "data.db"


def broken(path: Path) -> None:
    changed(path, "UPDATE ack_queue_default SET data = x'7b' WHERE _id % 7 = 0")


def mended(path: Path) -> None:
    changed(path, "UPDATE ack_queue_default SET data = CAST(_id - 1 AS BLOB) WHERE data = x'7b'")


def changed(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def an_import(db: fdbqueue.Database, origin: Origin, name: str = "jobs", **options: Any) -> Import:
    queue = TaskQueue.create(db, name, if_not_exists=True, **options)
    registry = Registry()
    keys = ProgressKeys(registry.keys, registry.find(db, name).id, origin.label)
    reading = Reading(origin, codec_named("json"), lambda value: value)
    return Import(db, keys, reading, Tasks(queue))


def numbers(db: fdbqueue.Database, name: str = "jobs") -> list[int]:
    return [task.data for task in TaskQueue.open(db, name).tasks(db, "r", 1000)]


READABLE = [number for number in range(COUNT) if (number + 1) % 7]
BROKEN = [number for number in range(COUNT) if not (number + 1) % 7]


@pytest.mark.parametrize("steps", range(7))
def test_an_import_that_ends_after_any_step_is_resumed(
    db: fdbqueue.Database, origin: Table, steps: int
) -> None:
    first = an_import(db, origin).steps()
    for _ in range(steps):
        next(first, None)
    first.close()
    again = list(an_import(db, origin).steps())
    assert numbers(db) == READABLE
    assert sum(len(step.skipped) for step in again) == len(BROKEN)


def test_an_unknown_result_doubles_nothing(db: fdbqueue.Database, origin: Table) -> None:
    """Of the commits of all steps: some took place, some did not."""
    an_import(db, origin)
    unsure, engine = faulty(db, FDBError)
    engine.fate = lambda n: (COMMIT_UNKNOWN, n % 3 == 1) if n % 3 else (0, True)
    list(an_import(unsure, origin).steps())
    assert numbers(db) == READABLE
    assert an_import(db, origin).moved_earlier == len(READABLE)


def test_skipped_items_are_tried_again_by_each_import(
    db: fdbqueue.Database, origin: Table, tmp_path: Path
) -> None:
    list(an_import(db, origin).steps())
    list(an_import(db, origin).steps())
    assert numbers(db) == READABLE
    mended(tmp_path / "old" / "data.db")
    for _ in range(2):
        list(an_import(db, origin).steps())
        assert numbers(db) == READABLE + BROKEN


def test_a_skipped_item_that_was_acked_since_is_forgotten(
    db: fdbqueue.Database, origin: Table, tmp_path: Path
) -> None:
    first = an_import(db, origin)
    list(first.steps())
    assert len(list(first._keys.skipped(db))) == len(BROKEN)
    changed(tmp_path / "old" / "data.db", "UPDATE ack_queue_default SET status = 5 WHERE data = x'7b'")
    list(an_import(db, origin).steps())
    assert list(first._keys.skipped(db)) == []
    assert list(an_import(db, origin).steps()) == []
    assert numbers(db) == READABLE


def test_a_mended_item_behind_skipped_ones_that_have_gone_comes(
    db: fdbqueue.Database, tmp_path: Path
) -> None:
    path = filled(tmp_path / "old", 5)
    changed(path, "UPDATE ack_queue_default SET data = x'7b' WHERE _id < 4")
    origin = Table(path, None, serializer_named("json"))
    list(an_import(db, origin).steps())
    changed(path, "DELETE FROM ack_queue_default WHERE _id < 3")
    mended(path)
    list(an_import(db, origin).steps())
    assert numbers(db) == [3, 4, 2]


def test_a_bounded_queue_with_less_room_than_a_batch_is_filled(db: fdbqueue.Database, tmp_path: Path) -> None:
    origin = Table(filled(tmp_path / "old", 5), None, serializer_named("json"))
    bounded: dict[str, Any] = {"kind": "limfifottl", "capacity": 3}
    with pytest.raises(QueueFull):
        list(an_import(db, origin, **bounded).steps())
    assert numbers(db) == [0, 1, 2]
    TaskQueue.open(db, "jobs").truncate(db)
    list(an_import(db, origin, **bounded).steps())
    assert numbers(db) == [3, 4]


def test_pages_of_skipped_items_are_all_tried_again(
    db: fdbqueue.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 4)
    broken(filled(tmp_path / "old", 71))
    origin = Table(tmp_path / "old" / "data.db", None, serializer_named("json"))
    list(an_import(db, origin).steps())
    again = list(an_import(db, origin).steps())
    assert [one.entry.position[0] for step in again for one in step.skipped] == [*range(7, 71, 7)]


def test_of_two_imports_at_once_one_ends(db: fdbqueue.Database, origin: Table) -> None:
    slow = an_import(db, origin).steps()
    next(slow)
    fast = an_import(db, origin).steps()
    next(fast)
    with pytest.raises(ImportOvertaken):
        next(slow)
    list(fast)
    assert numbers(db) == READABLE


def test_steps_of_two_imports_conflict(db: fdbqueue.Database, origin: Table) -> None:
    """Both have read the progress before the other has committed."""
    keys = an_import(db, origin)._keys
    first, second = begin(db), begin(db)
    for tr in (first, second):
        keys.write(tr, Progress(moved=keys.read(tr).moved + 1))
    first.commit().wait()
    assert error_code(lambda: second.commit().wait()) == NOT_COMMITTED


def test_another_queue_of_the_same_name_is_refused(
    db: fdbqueue.Database, origin: Table, tmp_path: Path
) -> None:
    """The directory was removed, or is that of another machine: its items would be lost silently."""
    list(an_import(db, origin).steps())
    (tmp_path / "old" / "data.db").unlink()
    filled(tmp_path / "old", COUNT + 5)
    with pytest.raises(OriginChanged, match="--source"):
        list(an_import(db, origin).steps())
    assert numbers(db) == READABLE


def test_a_drop_of_the_queue_clears_the_progress(db: fdbqueue.Database, origin: Table) -> None:
    list(an_import(db, origin).steps())
    keys = Registry().keys.imports_into(Registry().find(db, "jobs").id)
    assert len(list(db.get_range(keys.start, keys.stop))) == 1 + len(BROKEN)
    TaskQueue.open(db, "jobs").drop(db)
    assert list(db.get_range(keys.start, keys.stop)) == []
    list(an_import(db, origin).steps())
    assert numbers(db) == READABLE


def test_large_items_go_in_transactions_of_their_own(db: fdbqueue.Database, tmp_path: Path) -> None:
    queue = persistqueue.SQLiteQueue(str(tmp_path / "old"), serializer=JSON)
    sizes = [400_000, 400_000, 10, 1_200_000, 10]
    for size in sizes:
        queue.put("x" * size)
    origin = Table(tmp_path / "old" / "data.db", None, serializer_named("json"))
    steps = [[one.size_bytes - 2 for one in step.moved] for step in an_import(db, origin).steps()]
    assert steps == [[400_000], [400_000, 10], [1_200_000], [10]]
