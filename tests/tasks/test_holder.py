"""A taken task tells since when it is taken, by which session, and by which processes."""

import os
import platform
from collections.abc import Callable

import msgspec
import pytest
from fdb import tuple as layer

from fdbqueue import Database, HolderProcess, Session
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.records.keys import Record, id_bytes, record_of
from tests.support import begin, commit_code
from tests.tasks.support import Bench

MakeBench = Callable[..., Bench]
KEYS = RootKeys(DEFAULT_ROOT)
HERE = HolderProcess(platform.node(), os.getpid())


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utubettl", "fair", "bag"])
def test_a_taken_task_has_its_session_and_the_time_of_its_take(bench: MakeBench, kind: str) -> None:
    b = bench(kind=kind)
    b.put("x")
    b.clock.advance(5)
    taken = b.take()
    assert (taken.taken, taken.session) == (b.clock.now(), b.session.id.hex())
    b.clock.advance(1)
    assert b.queue.peek(b.db, taken) == taken
    assert list(b.queue.tasks(b.db, "t", 10)) == [taken]


def test_a_touch_keeps_the_time_of_the_take(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=60)
    b.put("x")
    taken = b.take()
    b.clock.advance(5)
    assert b.queue.touch(b.db, taken, 10).taken == taken.taken


@pytest.mark.parametrize("verb", ["release", "bury", "delete", "ack"])
def test_the_end_of_a_lease_takes_session_and_time_away(bench: MakeBench, verb: str) -> None:
    b = bench()
    b.put("x")
    after = getattr(b.queue, verb)(b.db, b.take())
    assert (after.taken, after.session) == (None, None)


@pytest.mark.parametrize("look", ["holder", "explain"])
def test_a_look_at_a_task_does_not_conflict_with_its_end(bench: MakeBench, look: str) -> None:
    b = bench()
    b.put("x")
    task, tr = b.take(), begin(b.db)
    getattr(b.queue, look)(tr, task.id)
    b.queue.put(tr, "other")
    b.queue.ack(b.db, task)
    assert commit_code(tr) == 0


def test_a_lease_that_is_over_has_no_holder(bench: MakeBench) -> None:
    """Nothing has swept it yet."""
    b = bench(kind="fifottl", ttr=60)
    b.put("x")
    taken = b.take()
    b.clock.advance(60)
    assert b.queue.holder(b.db, taken.id) is None
    assert b.queue.peek(b.db, taken.id).session is None


def test_a_holder_has_its_process_and_its_last_heartbeat(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    session = Session(b.db, ttr=30)
    taken = b.queue.take(b.db, 0, session=session)
    assert taken is not None
    b.clock.advance(7)
    session.beat()
    b.clock.advance(2)
    found = b.queue.holder(b.db, taken)
    assert found is not None
    assert (found.session, found.name, found.processes) == (session.id.hex(), None, (HERE,))
    assert (found.seen, found.dies) == (b.clock.now() - 2, b.clock.now() + 28)


def test_a_session_with_a_name_has_the_processes_of_its_openers(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    first, second = (Session(Database(b.db.engine, b.clock), "worker-7", 30) for _ in range(2))
    taken = b.queue.take(b.db, 0, session=first)
    assert taken is not None
    found = b.queue.holder(b.db, taken)
    assert found is not None
    assert (found.name, found.processes) == ("worker-7", (HERE, HERE))
    first.end()
    found = b.queue.holder(b.db, taken)
    assert found is not None
    assert (found.session, found.processes) == (second.id.hex(), (HERE,))


def test_a_task_that_is_not_taken_has_no_holder(bench: MakeBench) -> None:
    b = bench()
    assert b.queue.holder(b.db, b.put("x")) is None


def test_the_holder_of_a_missing_task_is_not_found(bench: MakeBench) -> None:
    b = bench()
    task = b.queue.delete(b.db, b.put("x"))
    with pytest.raises(TaskNotFound):
        b.queue.holder(b.db, task)


@pytest.mark.parametrize(
    "record",
    [
        layer.pack((b"owner", None, 30_000_000)),
        b"",
        b"\xff",
        layer.pack((1,)),
        layer.pack(("a", "b", "c", 1, 2)),
    ],
    ids=["no process", "empty", "damaged", "cut", "of other types"],
)
def test_a_session_without_a_readable_process_is_told(bench: MakeBench, record: bytes) -> None:
    b = bench()
    b.put("x")
    taken = b.take()
    b.db[KEYS.session(b.session.id)] = record
    found = b.queue.holder(b.db, taken)
    assert found is not None
    assert (found.session, found.processes) == (b.session.id.hex(), ())


def test_an_ended_session_has_no_processes_and_no_heartbeat(bench: MakeBench) -> None:
    """Its tasks go back in later transactions."""
    b = bench()
    b.put("x")
    taken = b.take()
    for key in (KEYS.session(b.session.id), KEYS.heartbeat(b.session.id)):
        del b.db[key]
    found = b.queue.holder(b.db, taken)
    assert found is not None
    assert (found.processes, found.seen, found.dies) == ((), None, None)


def test_a_record_without_its_last_parts_can_be_read(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")
    b.take()
    value = bytes(b.db[b.queue._shape.keys.task(id_bytes(id_))])
    until_then = Record.__struct_fields__.index("taken_us")
    earlier = record_of(msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:until_then]))
    assert earlier == msgspec.structs.replace(record_of(value), taken_us=0)
