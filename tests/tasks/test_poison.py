"""Poison costs itself and nothing else: a task that cannot be read holds no other task up."""

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Failure, Session, TaskQueue, TaskState, Worker, register_codec
from fdbqueue.core import codec as codecs
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    InvalidArgument,
    NotTaken,
    PayloadMismatch,
    PayloadUnknown,
    RecordUnreadable,
)
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.tasks.stored.records import (
    TaskKeys,
    id_bytes,
    id_text,
    record_of,
    record_to_bytes,
    sound_record,
)
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.partitions import MakeParted
from tests.tasks.support import MakeBench

KINDS = ("fifo", "fifottl", "utube", "utubettl", "fair")
LARGE = "x" * 2 * limits.RECORD_PAYLOAD_BYTES_MAX


class Point(msgspec.Struct):
    x: int


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, db: Database, space: Subspace) -> TaskQueue:
    return TaskQueue.create(db, "q", request.param, root=space)


@pytest.fixture
def keys(queue: TaskQueue) -> TaskKeys:
    return TaskKeys(queue.contents)


def put(db: Database, queue: TaskQueue, data: Any, key: Any = "k") -> bytes:
    keyed = queue.kind not in ("fifo", "fifottl")
    return id_bytes(queue.put(db, data, **({"key": key} if keyed else {})).id)


def spoil_payload(db: Database, queue: TaskQueue, id_: bytes, payload: bytes = b"{not json") -> None:
    """Damage the payload of a ready task, wherever it lies."""
    keys = TaskKeys(queue.contents)
    beside = db[keys.payload(id_, 0)]
    if beside is not None:
        db[keys.payload(id_, 0)] = payload.ljust(len(beside), b"{")
        return
    for row in records_of(db, queue, id_):
        record = record_of(row.value)
        spoilt = msgspec.structs.replace(record, payload=payload, size_bytes=len(payload))
        db[row.key] = record_to_bytes(spoilt)


def records_of(db: Database, queue: TaskQueue, id_: bytes) -> list[Any]:
    """Every key that holds the record of the task."""
    under = queue.contents.range()
    return [row for row in db.get_range(under.start, under.stop) if sound_record(row.value, id_)]


def spoil_records(db: Database, queue: TaskQueue, id_: bytes) -> None:
    for row in records_of(db, queue, id_):
        db[row.key] = b"\xff damaged"


def counts(db: Database, queue: TaskQueue) -> dict[str, int]:
    found = queue.statistics(db)["tasks"]
    return {name: n for name, n in found.items() if n and name not in ("total", "done", "due")}


# Payloads.


@pytest.mark.parametrize("data", ["small", LARGE], ids=["in the record", "beside it"])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_task_with_an_unreadable_payload_is_buried_at_its_take(
    db: Database, queue: TaskQueue, data: str, in_transaction: bool
) -> None:
    poison = put(db, queue, data)
    put(db, queue, "good")
    spoil_payload(db, queue, poison)
    if in_transaction:
        tr = db.create_transaction()
        task = queue.take(tr, 0)
        tr.commit().wait()
    else:
        task = queue.take(db, 0)
    assert task.data == "good"
    assert counts(db, queue) == {"taken": 1, "buried": 1}
    queue.ack(db, task)
    [buried] = queue.tasks(db, TaskState.BURIED, 9)
    assert isinstance(buried.data, Unreadable)
    assert buried.attempts == 1
    [failure] = queue.failures(db, buried)
    assert (failure.error, failure.outcome) == ("PayloadUnreadable", "buried")
    assert "json" in failure.message
    assert queue.take(db, 0) is None


def test_a_payload_with_a_missing_part_is_unreadable(db: Database, queue: TaskQueue) -> None:
    keys = TaskKeys(queue.contents)
    ids = [put(db, queue, "x" * size) for size in (1_000, 200_000)]
    db.clear(keys.payload(ids[0], 0))
    db.clear(keys.payload(ids[1], 1))
    put(db, queue, "good")
    assert queue.take(db, 0).data == "good"
    assert counts(db, queue) == {"taken": 1, "buried": 2}


def test_many_unreadable_payloads_are_buried_by_several_takes(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    for _ in range(50):
        spoil_payload(db, queue, put(db, queue, "bad"))
    put(db, queue, "good")
    assert queue.take(db, 5).data == "good"
    assert counts(db, queue) == {"taken": 1, "buried": 50}


def test_a_task_that_others_can_read_is_passed_over(db: Database, queue: TaskQueue, space: Subspace) -> None:
    """It stays where it is; its error is raised where there is nothing else to take."""
    poison = put(db, queue, {"y": 1}, "a")
    for x in (1, 2):
        put(db, queue, {"x": x}, f"good {x}")
    typed = TaskQueue.open(db, "q", type=Point, root=space)
    assert typed.take(db, 0).data == Point(1)
    assert typed.take(db, 1).data == Point(2)
    for timeout in (0, 0.1):
        with pytest.raises(PayloadMismatch, match=r"Point.*'q'") as raised:
            typed.take(db, timeout)
        assert raised.value.queue == "q"
    assert counts(db, queue) == {"ready": 1, "taken": 2}
    plain = queue.take(db, 0)
    assert (id_bytes(plain.id), plain.data, plain.attempts) == (poison, {"y": 1}, 1)
    assert typed.take(db, 0) is None


def test_a_take_in_a_transaction_passes_over_and_moves_nothing(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    put(db, queue, {"y": 1})
    typed = TaskQueue.open(db, "q", type=Point, root=space)
    tr = db.create_transaction()
    with pytest.raises(PayloadMismatch):
        typed.take(tr, 0)
    put(db, queue, {"x": 1})
    tr = db.create_transaction()
    assert typed.take(tr, 0).data == Point(1)
    tr.commit().wait()
    assert counts(db, queue) == {"ready": 1, "taken": 1}


def test_a_class_that_is_missing_here_buries_nothing(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking:
        def encode(self, value: Any) -> bytes:
            return bytes(value)

        def decode(self, payload: bytes) -> Any:
            raise ImportError(f"no module named 'shop' for {payload!r}")

    monkeypatch.setattr(codecs, "_registered", {})
    register_codec("lacking", Lacking())
    queue = TaskQueue.create(db, "q", codec="lacking", root=space)
    put(db, queue, b"1")
    with pytest.raises(PayloadUnknown, match="shop"):
        queue.take(db, 0)
    assert counts(db, queue) == {"ready": 1}


def test_more_tasks_than_are_remembered_raise_at_once(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    queue.put_many(db, [{"y": 1}] * (limits.PASSED_OVER_MAX + 20))
    typed = TaskQueue.open(db, "q", type=Point, root=space)
    with pytest.raises(PayloadMismatch):
        typed.take(db, 0)
    assert counts(db, queue) == {"ready": limits.PASSED_OVER_MAX + 20}


def test_a_task_can_be_ended_or_removed_without_its_payload(db: Database, queue: TaskQueue) -> None:
    ids = [put(db, queue, "bad", n) for n in range(4)]
    for id_ in ids:
        spoil_payload(db, queue, id_)
    [deleted, buried, *_] = queue.tasks(db, TaskState.READY, 9)
    assert isinstance(queue.delete(db, deleted.id).data, Unreadable)
    assert isinstance(queue.bury(db, buried.id).data, Unreadable)
    assert isinstance(queue.peek(db, buried.id).data, Unreadable)
    assert queue.truncate_some(db, 1) == 1
    queue.truncate(db)
    assert counts(db, queue) == {}


def test_a_worker_goes_on_with_its_other_queues(db: Database, space: Subspace) -> None:
    """A queue that has only tasks to pass over delays no other queue."""
    first, second = (TaskQueue.create(db, name, root=space) for name in ("first", "second"))
    spoil_payload(db, first, put(db, first, "bad"))
    put(db, first, {"y": 1})
    typed, done = TaskQueue.open(db, "first", type=Point, root=space), []
    for n in range(10):
        put(db, second, n)
    worker = Worker(db, [typed, second], lambda task: done.append(task.data), threads=1, root=space)
    worker.start()
    while len(done) < 10:
        db.runtime.sleep(0.01)
    worker.stop()
    worker.join()
    assert worker.error is None
    assert counts(db, first) == {"ready": 1, "buried": 1}
    with pytest.raises(PayloadMismatch):
        Worker(db, [typed, second], print, root=space).run(until_empty=True)


# Records.


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_damaged_entry_of_a_key_is_met_in_its_turn(db: Database, queue: TaskQueue, is_lost: bool) -> None:
    """Each change of its key passed it over, so no take ever met it."""
    ids = [put(db, queue, name) for name in "abcd"]
    for id_ in ids[1], ids[3]:
        rows = records_of(db, queue, id_)
        for row in rows if is_lost else rows[1:]:
            db[row.key] = b"\xff damaged"
    given = []
    while task := queue.take(db, 0):
        given.append(task.data)
        queue.ack(db, task)
    assert given == (["a", "c"] if is_lost else ["a", "b", "c", "d"])
    assert counts(db, queue) == ({"unreadable": 2} if is_lost else {})
    assert [found.values for found in queue.aside(db, 9)] == [[b"\xff damaged"] * 2] * 2 * is_lost


@pytest.mark.parametrize("pri", [0, 5])
def test_a_damaged_entry_of_a_key_keeps_its_priority(db: Database, space: Subspace, pri: int) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", root=space)
    ids = [id_bytes(queue.put(db, name, key="k", pri=pri).id) for name in "abc"]
    db[records_of(db, queue, ids[1])[1].key] = b"\xff damaged"
    given = []
    while task := queue.take(db, 0):
        given.append(task.data)
        queue.ack(db, task)
    assert given == ["a", "b", "c"]


@pytest.mark.parametrize("state", ["z", "-"])
def test_a_record_in_no_state_counts_as_damaged(db: Database, queue: TaskQueue, state: str) -> None:
    id_, good = put(db, queue, "bad"), put(db, queue, "good")
    respell(db, queue, id_, state=state)
    for look in (queue.peek, queue.explain, queue.holder):
        with pytest.raises(RecordUnreadable):
            look(db, id_text(id_))
    assert id_bytes(queue.take(db, 0).id) == good
    assert counts(db, queue) == {"taken": 1, "unreadable": 1}


def test_a_damaged_task_key_is_shown_as_its_bytes(db: Database, queue: TaskQueue) -> None:
    if queue.kind in ("fifo", "fifottl"):
        id_, good = put(db, queue, "bad"), put(db, queue, "good")
        respell(db, queue, id_, key=b"\xff\x01")
        assert queue.peek(db, id_text(id_)).key == b"\xff\x01"
        assert [id_bytes(queue.take(db, 0).id) for _ in range(2)] == [id_, good]


def respell(db: Database, queue: TaskQueue, id_: bytes, **fields: Any) -> None:
    """Change fields of the stored record of a ready task, in both places."""
    for row in records_of(db, queue, id_):
        db[row.key] = record_to_bytes(msgspec.structs.replace(record_of(row.value), **fields))


def test_a_task_with_a_damaged_record_can_be_deleted(db: Database, queue: TaskQueue) -> None:
    id_, good = put(db, queue, LARGE), put(db, queue, "good")
    task = queue.take(db, 0)
    db[TaskKeys(queue.contents).task(id_)] = b"\xff damaged"
    deleted = queue.delete(db, id_text(id_))
    assert isinstance(deleted.data, Unreadable)
    assert deleted.data.payload == b"\xff damaged"
    assert counts(db, queue) == {"ready": 1}
    with pytest.raises(NotTaken):
        queue.ack(db, task)
    assert id_bytes(queue.take(db, 0).id) == good


@pytest.mark.parametrize("remove", ["truncate_some", "truncate", "drop"])
def test_removal_needs_no_record(db: Database, queue: TaskQueue, remove: str) -> None:
    for n in range(3):
        spoil_records(db, queue, put(db, queue, LARGE, n))
    put(db, queue, "good")
    calls: dict[str, Callable[[], Any]] = {
        "truncate_some": lambda: queue.truncate_some(db),
        "truncate": lambda: queue.truncate(db),
        "drop": lambda: queue.drop(db),
    }
    calls[remove]()
    if remove != "drop":
        assert counts(db, queue) == {}


def test_a_dead_session_ends_behind_keys_of_tasks_that_are_gone(db: Database, queue: TaskQueue) -> None:
    """It ended never: the keys of taken tasks were found again and again."""
    session = Session(db, ttr=30, root=db_root(queue))
    lost = put(db, queue, "lost")
    queue.take(db, 0, session=session)
    db.clear(TaskKeys(queue.contents).task(lost))
    session.end()
    assert counts(db, queue) == {}


def test_two_sweeps_count_a_lost_task_once(db: Database, queue: TaskQueue) -> None:
    """Otherwise the number of taken tasks would fall below zero."""
    lost = put(db, queue, "lost")
    queue.take(db, 0)
    db.clear(TaskKeys(queue.contents).task(lost))
    sweeps = [begin(db), begin(db)]
    for tr in sweeps:
        queue.release_all(tr)
    assert [commit_code(tr) for tr in sweeps] == [0, NOT_COMMITTED]
    assert counts(db, queue) == {}


def test_a_task_with_two_entries_of_its_state_is_kicked_once(bench: MakeBench) -> None:
    b = bench("fifottl")
    id_, shape = b.put(pri=7), b.queue._shape
    b.queue.bury(b.db, id_)
    record = record_of(b.db[shape.keys.task(id_bytes(id_))])
    b.db[shape.keys.buried_at(shape.discipline.place(msgspec.structs.replace(record, pri=9)))] = b""
    assert b.queue.kick(b.db, 9) == 1
    assert b.counts("total", "ready", "buried", "kick") == (1, 1, 0, 1)


def test_an_entry_of_another_holder_releases_no_task(parted: MakeParted) -> None:
    """The end of that session clears it, and goes on."""
    b = parted("fifottl", ttr=600)
    id_ = b.put("x")
    task, other = b.take(), Session(b.db, ttr=1000, root=b.root)
    stray = b.queue._shape.keys.taken_by(other.id, id_bytes(id_))
    b.db[stray] = b""
    other.end()
    assert b.db[stray] is None
    assert b.queue.ack(b.db, task)


def test_an_entry_of_another_state_is_cleared_when_met(parted: MakeParted) -> None:
    b = parted("fifottl", ttr=600)
    stray = b.queue._shape.keys.taken_by(bytes(16), id_bytes(b.put("x")))
    b.db[stray] = b""
    b.queue.release_all(b.db)
    assert b.db[stray] is None
    assert b.take() is not None


def test_a_timer_of_no_task_is_cleared(db: Database, queue: TaskQueue) -> None:
    keys = TaskKeys(queue.contents)
    db[keys.timer(1, b"\xff" * 20)] = b""
    db[keys.timers.start + b"\x00"] = b""
    queue.statistics(db)
    assert list(db.get_range(keys.timers.start, keys.timers.stop)) == []


def test_values_set_aside_are_listed_in_pages_and_removed_by_id(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    for n in range(5):
        spoil_records(db, queue, put(db, queue, LARGE, n))
    assert queue.take(db, 0) is None
    assert queue.unreadable(db) == 5
    first = queue.aside(db, 3)
    rest = queue.aside(db, 3, after=first.next)
    assert (len(first), len(rest), rest.next) == (3, 2, None)
    assert len({found.id for found in [*first, *rest]}) == 5
    assert queue.remove_aside(db, [first[0].id, first[0].id]) == 1
    assert queue.remove_aside(db, [found.id for found in first]) == 2
    assert queue.unreadable(db) == 2
    assert [found.id for found in queue.aside(db, 9)] == [found.id for found in rest]
    for wrong in (["nonsense"], [5], ["0" * 8], [rest[0].id] * (limits.VERB_BATCH + 1)):
        with pytest.raises(InvalidArgument):
            queue.remove_aside(db, wrong)
    with pytest.raises(InvalidArgument):
        queue.aside(db, 1, after="00")


@pytest.mark.parametrize(
    "failure", [Failure("E", worker=os.getpid()), Failure(ValueError), Failure(b"x", None, 1.5)]
)
def test_a_failure_is_stored_as_text(db: Database, space: Subspace, failure: Failure) -> None:
    """A failure that could be stored but not read hid its task from every listing, and from its handler."""
    queue = TaskQueue.create(db, "q", root=space)
    queue.put(db, 1)
    task = queue.release(db, queue.take(db, 0), failure=failure)
    [found] = queue.failures(db, task)
    assert all(isinstance(text, str) for text in (found.error, found.message, found.detail, found.worker))
    Worker(db, "q", str, root=space).run(until_empty=True)
    assert counts(db, queue) == {}


def test_a_damaged_failure_is_left_out(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    id_ = put(db, queue, 1)
    for _ in range(2):
        queue.release(db, queue.take(db, 0), failure=Failure("E"))
    db[TaskKeys(queue.contents).failure(id_, 0)] = b"damaged"
    assert len(queue.failures(db, id_text(id_))) == 1
    Worker(db, "q", str, root=space).run(until_empty=True)
    assert counts(db, queue) == {}


def db_root(queue: TaskQueue) -> Any:
    return Subspace((), queue._shape.root.prefix)
