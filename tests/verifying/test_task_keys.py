"""A task key with damage in several places keeps the order of its tasks."""

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, TaskQueue, verify
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.records import id_bytes, sound_record


@pytest.mark.parametrize("kind", ["utube", "fair"])
def test_a_damaged_first_task_of_a_mended_key_comes_first(db: Database, space: Subspace, kind: str) -> None:
    queue = TaskQueue.create(db, "q", kind, root=space)
    ids = [id_bytes(queue.put(db, name, key="k").id) for name in "abc"]
    keyed, record_key = queue._shape.discipline, queue._shape.keys.task(ids[0])
    record = sound_record(db[record_key], ids[0])
    for key in (keyed.filed(record), keyed.state_key(key_bytes("k"))):
        db[key] = b"\xff damaged"
    verify(db, "q", root=space, mend=True)
    assert verify(db, "q", root=space).findings == ()
    given = []
    while task := queue.take(db, 0):
        given.append(task.data)
        queue.ack(db, task)
    assert given == ["a", "b", "c"]
