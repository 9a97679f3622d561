"""Values of all partitions are set aside in one place."""

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Overview, Session, TaskQueue, verify
from fdbqueue.core.errors import PayloadMismatch
from fdbqueue.tasks.stored.records import id_bytes, sound_record
from tests.partitions.support import PARTITIONS, key_in


def test_an_unreadable_task_of_a_partition_is_set_aside(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=PARTITIONS)
    for partition in (1, 3):
        shape = queue._shape.partition(partition)
        id_ = id_bytes(queue.put(db, "lost", key=key_in(partition)).id)
        rows = db.get_range(shape.keys.ready.start, shape.keys.ready.stop)
        for key in (shape.keys.task(id_), *(row.key for row in rows)):
            db[key] = b"damage"
        for row in db.get_range(shape.discipline.index.start, shape.discipline.index.stop):
            db[row.key] = b"damage"
    assert queue.take(db, 0) is None
    found = queue.aside(db, 10)
    assert len(found) == queue.unreadable(db) == queue.statistics(db)["tasks"]["unreadable"] > 0
    assert Overview("q", root=space).figures(db).by_name["q"].unreadable == len(found)
    assert verify(db, "q", root=space).findings == ()
    queue.repartition(db, 1)
    assert queue.remove_aside(db, [one.id for one in found]) == len(found)
    assert queue.unreadable(db) == 0


def test_a_task_key_that_is_freed_by_a_mending_has_a_flag(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=PARTITIONS)
    shape = queue._shape.partition(1)
    queue.put(db, "first", key=key_in(1)), queue.put(db, "second", key=key_in(1))
    with Session(db, ttr=600, root=space) as session:
        taken = queue.take(db, 0, session=session)
        assert queue.take(db, 0, session=session) is None
        db[shape.keys.task(id_bytes(taken.id))] = b"damage"
        flag = shape.shared.flag(1)
        assert db[flag] is None
    assert queue.unreadable(db) == 1
    assert db[flag] is not None
    assert verify(db, "q", root=space).findings == ()


def test_a_moved_task_that_is_set_aside_leaves_no_key(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space, partitions=PARTITIONS)
    ids = [queue.put(db, n).id for n in range(PARTITIONS)]
    for id_ in ids:
        queue.bury(db, id_)
    queue.repartition(db, 1)
    queue.kick(db, PARTITIONS)
    zero = queue._shape
    for id_ in map(id_bytes, ids):
        db[zero.keys.task(id_)] = b"damage"
    for row in db.get_range(zero.keys.ready.start, zero.keys.ready.stop):
        db[row.key] = b"damage"
    assert queue.take(db, 0) is None
    assert queue.unreadable(db) == PARTITIONS
    assert db.get_range(zero.shared.all_moved.start, zero.shared.all_moved.stop) == []


def test_a_moved_task_that_is_set_aside_frees_its_task_key(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", root=space, partitions=PARTITIONS)
    bad, good = [queue.put(db, name, key=key_in(1), pri=5) for name in ("bad", "good")]
    queue.bury(db, bad.id), queue.bury(db, good.id)
    queue.repartition(db, 1)
    queue.kick(db, 2)
    under = queue.contents.range()
    for row in db.get_range(under.start, under.stop):
        if sound_record(row.value, id_bytes(bad.id)):
            db[row.key] = b"damage"
    with Session(db, ttr=600, root=space) as session:
        assert queue.take(db, 0, session=session).data == "good"
    assert queue.unreadable(db) == 1
    assert verify(db, "q", root=space).findings == ()


def test_a_take_tells_of_a_task_of_another_type_in_any_partition(db: Database, space: Subspace) -> None:
    plain = TaskQueue.create(db, "q", "utube", root=space, partitions=PARTITIONS)
    typed = TaskQueue.create(
        db, "q", "utube", root=space, partitions=PARTITIONS, if_not_exists=True, type=int
    )
    plain.put(db, "no number", key=key_in(2))
    with Session(db, ttr=600, root=space) as session:
        with pytest.raises(PayloadMismatch):
            typed.take(db, 0, session=session)
        assert plain.take(db, 0, session=session) is not None
