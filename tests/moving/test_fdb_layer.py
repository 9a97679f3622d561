"""`fdbqueue import fdb-layer`, on the keys of FoundationDB's old layer, and of its documented recipe."""

import os

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.old_layer import OldQueue
from fdbqueue.core import limits
from fdbqueue.operate.origins import form_of
from tests.moving.support import Program, counts, program

__all__ = ["program"]
OLD = Subspace(("old",))
PREFIX = OLD.key().hex()


def pushed(db: fdbqueue.Database, *values: str) -> OldQueue:
    queue = OldQueue(db, OLD)
    for value in values:
        queue.push(value)
    return queue


def stored(program: Program) -> list[tuple[bytes, bytes]]:
    with fdbqueue.open(program.url) as db:
        whole = OLD.range()
        return [(bytes(row.key), bytes(row.value)) for row in db.get_range(whole.start, whole.stop)]


def test_the_old_layer_comes_in_order_and_stays_as_it_is(program: Program) -> None:
    with fdbqueue.open(program.url) as db:
        queue = pushed(db, *"abcde")
        queue.pop_simple()
    before = stored(program)
    command = ("fdb-layer", PREFIX, "jobs")
    assert program(*command, "--create", "--dry-run") == (0, [counts(4)], "")
    assert program(*command, "--create") == (0, [counts(4)], "")
    assert program(*command) == (0, [counts(0, moved_earlier=4)], "")
    assert program.items("jobs") == list("bcde")
    assert stored(program) == before


def test_items_of_pops_that_were_not_collected_come_first(program: Program) -> None:
    """A process died between its pop and the end of its wait; a pop that waits has no item."""
    with fdbqueue.open(program.url) as db:
        queue = pushed(db, "a", "b")
        queue._register(os.urandom(20))
        queue._serve()
        queue._register(os.urandom(20))
    assert [layer.unpack(key, prefix_len=len(OLD.key()))[0] for key, _ in stored(program)] == [
        b"conflict",
        b"item",
        b"pop",
    ]
    assert program("fdb-layer", PREFIX, "jobs", "--create")[1] == [counts(2)]
    assert program.items("jobs") == ["a", "b"]


def test_items_of_several_pages_come_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMPORT_BATCH_ITEMS", 2)
    with fdbqueue.open(program.url) as db:
        pushed(db, *"abcde")
    assert program("fdb-layer", PREFIX, "jobs", "--create")[1] == [counts(5)]
    assert program.items("jobs") == list("abcde")


def test_byte_strings_of_python_2_become_texts_or_stay(program: Program) -> None:
    with fdbqueue.open(program.url) as db:
        db.set(OLD.pack((b"item", 0, b"r" * 20)), layer.pack(("é".encode(),)))
        db.set(OLD.pack((b"item", 1, b"r" * 20)), layer.pack((7,)))
    status, rows, err = program("fdb-layer", PREFIX, "jobs", "--create")
    assert (status, rows[-1], "--text" in err) == (1, counts(1, skipped=1), True)
    assert program("fdb-layer", PREFIX, "jobs", "--text")[1] == [counts(1, moved_earlier=1)]
    assert program.items("jobs") == [7, "é"]
    assert program("fdb-layer", PREFIX, "raw", "--create", "--codec", "msgpack")[1] == [counts(2)]
    assert program.items("raw") == ["é".encode(), 7]


def test_the_recipe_of_the_documentation_comes_in_order(program: Program) -> None:
    with fdbqueue.open(program.url) as db:
        for index in (1, 2, 300):
            db.set(OLD[index][os.urandom(20)].key(), b"%d" % index)
    assert program("fdb-layer", PREFIX, "jobs", "--create", "--codec", "bytes")[1] == [counts(3)]
    assert program.items("jobs") == [b"1", b"2", b"300"]


def test_a_task_queue_takes_the_items_too(program: Program) -> None:
    with fdbqueue.open(program.url) as db:
        pushed(db, *"ab")
        fdbqueue.TaskQueue.create(db, "jobs", "fifottl", ttr=60)
    assert program("fdb-layer", PREFIX, "jobs")[1] == [counts(2)]
    assert program.tasks("jobs") == ["a", "b"]


def test_a_key_of_something_else_is_reported(program: Program) -> None:
    with fdbqueue.open(program.url) as db:
        pushed(db, "a")
        db.set(OLD.pack(("else",)), b"")
    status, (row, total), _ = program("fdb-layer", PREFIX, "jobs", "--create")
    assert (status, total) == (1, counts(1, skipped=1))
    assert row["reason"] == "its key is none of such a queue"


def test_a_key_that_is_too_long_to_note_stops_no_import(program: Program) -> None:
    """Its zeros take two bytes each in the key that would note it."""
    with fdbqueue.open(program.url) as db:
        pushed(db, "a")
        db[OLD.key() + b"\xf0" + bytes(6_000)] = b"foreign"
    status, [*_, total], _ = program("fdb-layer", PREFIX, "jobs", "--create")
    assert (status, total) == (1, counts(1, skipped=1))


def test_a_key_with_thousands_of_levels_is_of_something_else() -> None:
    assert form_of(b"\x05" * 5000) is None


@pytest.mark.parametrize(
    ("prefix", "said"), [("0x", "not hexadecimal"), ("", "the whole database"), ("02ff", "no key below")]
)
def test_a_prefix_without_such_a_queue_is_refused(program: Program, prefix: str, said: str) -> None:
    fdbqueue.open(program.url).close()
    status, _, err = program("fdb-layer", prefix, "jobs", "--create")
    assert (status, said in err) == (2, True)
