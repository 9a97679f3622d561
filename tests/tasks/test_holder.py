"""A taken task tells since when it is taken, by which session, and by which processes."""

import msgspec
import pytest
from fdb import tuple as layer

from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.stored.records import Record, id_bytes, record_of
from tests.support import begin, commit_code
from tests.tasks.support import MakeBench

KEYS = RootKeys(DEFAULT_ROOT)


@pytest.mark.parametrize("look", ["holder", "explain"])
def test_a_look_at_a_task_does_not_conflict_with_its_end(bench: MakeBench, look: str) -> None:
    b = bench("utubettl", ttr=60)
    b.put("x", key="a")
    task, tr = b.take(), begin(b.db)
    getattr(b.queue, look)(tr, task.id)
    tr[b"other"] = b""
    b.queue.ack(b.db, task)
    b.put("y", key="a")
    assert commit_code(tr) == 0


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
    assert (found.session, found.processes) == (b.session.id.hex(), ())


def test_an_ended_session_has_no_processes_and_no_heartbeat(bench: MakeBench) -> None:
    """Its tasks go back in later transactions."""
    b = bench()
    b.put("x")
    taken = b.take()
    for key in (KEYS.session(b.session.id), KEYS.heartbeat(b.session.id)):
        del b.db[key]
    found = b.queue.holder(b.db, taken)
    assert (found.processes, found.seen, found.dies) == ((), None, None)


def test_a_record_without_its_last_parts_can_be_read(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")
    b.take()
    value = bytes(b.db[b.queue._shape.keys.task(id_bytes(id_))])
    until_then = Record.__struct_fields__.index("taken_us")
    earlier = record_of(msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:until_then]))
    assert earlier == msgspec.structs.replace(record_of(value), taken_us=0)
