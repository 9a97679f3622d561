"""The checks at the door: a refusal names its argument, is short, and leaves nothing behind."""

import builtins
import inspect
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    FdbQueueError,
    InvalidArgument,
    NotADatabase,
    QueueFull,
    TooMuchForOneTransaction,
    UnknownUrl,
    WrongType,
)
from fdbqueue.core.registry import Registry
from fdbqueue.fleet.status import Orders
from fdbqueue.fleet.supervisor import Process

SURROGATE = "\ud800"
ROOT = Subspace(("arguments",))


def stored(db: fdbqueue.Database) -> list[tuple[bytes, bytes]]:
    return [(entry.key, entry.value) for entry in db.get_range(b"", b"\xff")]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = (value,)
    return value


def test_a_star_import_hides_no_builtin() -> None:
    assert not set(fdbqueue.__all__) & set(dir(builtins))
    assert callable(fdbqueue.open)
    public = {
        name for name, value in vars(fdbqueue).items() if not (name[0] == "_" or inspect.ismodule(value))
    }
    assert public - {*fdbqueue.__all__, "TYPE_CHECKING", "lazily"} == {"open"}


ROOTED: dict[str, Callable[[Any, Any], Any]] = {
    "Queue": lambda _, root: fdbqueue.Queue(ROOT, root=root),
    "Queue.named": lambda db, root: fdbqueue.Queue.named(db, "q", root=root),
    "FairQueue": lambda _, root: fdbqueue.FairQueue(ROOT, key=str, root=root),
    "ElementQueue": lambda _, root: fdbqueue.ElementQueue(ROOT, root=root),
    "TaskQueue.create": lambda db, root: fdbqueue.TaskQueue.create(db, "q", root=root),
    "PersistentQueue": lambda db, root: fdbqueue.PersistentQueue(db, "q", root=root),
    "Session": lambda db, root: fdbqueue.Session(db, root=root),
    "Worker": lambda db, root: fdbqueue.Worker(db, "q", print, root=root),
    "workers": lambda db, root: fdbqueue.workers(db, root=root),
    "statistics": lambda db, root: fdbqueue.statistics(db, root=root),
    "list_queues": lambda db, root: fdbqueue.list_queues(db, root=root),
}


@pytest.mark.parametrize("call", ROOTED.values(), ids=ROOTED)
@pytest.mark.parametrize("root", ["a text", b"bytes", None, Subspace, Subspace(("x" * 20_000,))], ids=repr)
def test_a_root_is_a_subspace(memory: fdbqueue.Database, call: Callable[..., Any], root: Any) -> None:
    before = stored(memory)
    with pytest.raises(InvalidArgument, match=r"^root must be a Subspace") as refused:
        call(memory, root)
    assert len(str(refused.value)) < 1_000
    assert stored(memory) == before


NAMED: dict[str, Callable[[Any, str], Any]] = {
    "Queue.named": fdbqueue.Queue.named,
    "TaskQueue.create": fdbqueue.TaskQueue.create,
    "TaskQueue.open": fdbqueue.TaskQueue.open,
    "ElementQueue.named": fdbqueue.ElementQueue.named,
    "PersistentQueue": fdbqueue.PersistentQueue,
    "PersistentQueue owner": lambda db, name: fdbqueue.PersistentQueue(db, "q", owner=name),
    "Session": fdbqueue.Session,
    "workers": fdbqueue.workers,
}


@pytest.mark.parametrize("call", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("name", [SURROGATE, "", "x" * 20_000, 7], ids=["surrogate", "empty", "long", "int"])
def test_a_name_is_a_text_of_bounded_length(
    memory: fdbqueue.Database, call: Callable[..., Any], name: Any
) -> None:
    before = stored(memory)
    with pytest.raises(InvalidArgument, match="must be a text of 1 to 500 bytes"):
        call(memory, name)
    assert stored(memory) == before


@pytest.mark.parametrize("session", ["worker-1", "", 0, [], fdbqueue.Session], ids=repr)
def test_a_wrong_session_is_refused(memory: fdbqueue.Database, session: Any) -> None:
    """Whether or not it is false, and before it is remembered as one that takes."""
    queue = fdbqueue.TaskQueue.create(memory, "q")
    queue.put_many(memory, range(3))
    held = queue.take(memory, 0)
    assert held is not None
    before = stored(memory)
    calls: list[Callable[[], Any]] = [
        lambda: queue.take(memory, 0, session=session),
        lambda: queue.take_many(memory, 1, session=session),
        lambda: queue.end_waits(memory, session=session),
        lambda: queue.ack(memory, held.id, session=session),
        lambda: queue.release(memory, held.id, session=session),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"^session must be a Session"):
            call()
    assert stored(memory) == before
    assert queue.take(memory, 0, session=fdbqueue.Session(memory)) is not None


@pytest.mark.parametrize("path", ["\x00", SURROGATE, "a/" * 3_000], ids=["NUL", "surrogate", "long"])
def test_a_url_that_can_be_no_path_is_refused(path: str) -> None:
    with pytest.raises(UnknownUrl):
        fdbqueue.open(f"embedded:{path}")


SEEN: dict[str, Callable[[Any, Any], Any]] = {
    "TaskQueue.create": lambda _, tr: fdbqueue.TaskQueue.create(tr, "new"),
    "TaskQueue.statistics": lambda db, tr: fdbqueue.TaskQueue.open(db, "tasks").statistics(tr),
    "TaskQueue.failures": lambda db, tr: fdbqueue.TaskQueue.open(db, "tasks").failures(tr, "0" * 32),
    "list_queues": lambda _, tr: fdbqueue.list_queues(tr),
    "statistics": lambda _, tr: fdbqueue.statistics(tr),
    "Queue.named": lambda _, tr: fdbqueue.Queue.named(tr, "new"),
}


@pytest.mark.parametrize("call", SEEN.values(), ids=SEEN)
def test_a_snapshot_is_no_transaction(memory: fdbqueue.Database, call: Callable[..., Any]) -> None:
    fdbqueue.TaskQueue.create(memory, "tasks")
    with pytest.raises(NotADatabase, match="a snapshot"):
        call(memory, memory.create_transaction().snapshot)


UNBORN: dict[str, Callable[[Any], Any]] = {
    "contended": lambda db: fdbqueue.Queue.named(db, "new", contended="bogus"),
    "empty codec": lambda db: fdbqueue.Queue.named(db, "new", codec=""),
    "codec of another type": lambda db: fdbqueue.Queue.named(db, "new", codec=0),  # type: ignore[arg-type]
    "type": lambda db: fdbqueue.TaskQueue.create(db, "new", type=7),
    "owner": lambda db: fdbqueue.PersistentQueue(db, "new", owner=""),
}


@pytest.mark.parametrize("call", UNBORN.values(), ids=UNBORN)
def test_a_queue_that_is_refused_is_not_there(memory: fdbqueue.Database, call: Callable[..., Any]) -> None:
    with pytest.raises(FdbQueueError):
        call(memory)
    assert fdbqueue.list_queues(memory) == []


def test_a_queue_whose_kind_makes_no_discipline_is_not_there(memory: fdbqueue.Database) -> None:
    # Not at import: a registered kind becomes a parameter of the modules that are collected after it.
    fdbqueue.register_kind("makes nothing", lambda *_: None, ())  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgument, match=r"^discipline must be"):
        fdbqueue.TaskQueue.create(memory, "new", "makes nothing")
    assert fdbqueue.list_queues(memory) == []


@pytest.mark.parametrize("kind", [None, "", SURROGATE, 7])
def test_a_kind_has_a_text_for_its_name(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^name must be a text"):
        fdbqueue.register_kind(kind, print, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["enqueue_many", "put_many"])
def test_a_batch_is_read_to_its_bound_and_no_further(memory: fdbqueue.Database, method: str) -> None:
    read = []

    def endless() -> Iterator[int]:
        while True:
            read.append(None)
            yield 1

    plain = method == "enqueue_many"
    queue: Any = fdbqueue.Queue(ROOT) if plain else fdbqueue.TaskQueue.create(memory, "q")
    with pytest.raises(TooMuchForOneTransaction):
        getattr(queue, method)(memory, endless())
    assert len(read) == limits.BATCH_ITEMS_MAX + 1
    with pytest.raises(WrongType, match="must be several values"):
        getattr(queue, method)(memory, 7)


def test_a_refused_batch_tells_its_items_and_its_bytes(memory: fdbqueue.Database) -> None:
    queue = fdbqueue.TaskQueue.create(memory, "q")
    for call in (queue.put_many, fdbqueue.Queue(ROOT).enqueue_many):
        with pytest.raises(TooMuchForOneTransaction, match=r"^1,001 items or more: .*at most 1,000 items\)"):
            call(memory, ["x"] * 1_001)
        with pytest.raises(
            TooMuchForOneTransaction, match=r"^2 items of 1,200,004 bytes: .*1,000,000 bytes\)"
        ):
            call(memory, ["x" * 600_000] * 2)
    with pytest.raises(TooMuchForOneTransaction, match=r"^1,500 items or more"):
        queue.take_many(memory, 1_500)


ONE_VALUE = ("abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), {"a": 1})
BATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "Queue.enqueue_many": lambda db, one: fdbqueue.Queue(ROOT).enqueue_many(db, one),
    "Queue.give_back": lambda db, one: fdbqueue.Queue(ROOT).give_back(db, one),
    "Queue.remove_aside": lambda db, one: fdbqueue.Queue(ROOT).remove_aside(db, one),
    "TaskQueue.put_many": lambda db, one: fdbqueue.TaskQueue.open(db, "q").put_many(db, one),
    "TaskQueue.renew": lambda db, one: fdbqueue.TaskQueue.open(db, "q").renew(db, one),
    "TaskQueue.create": lambda db, one: fdbqueue.TaskQueue.create(db, "new", limits=one),
    "Group.put_many": lambda db, one: fdbqueue.Group.create(db).put_many(
        db, fdbqueue.TaskQueue.open(db, "q"), one
    ),
}


@pytest.mark.parametrize("call", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("one", ONE_VALUE, ids=lambda one: type(one).__name__)
def test_one_value_is_no_batch(memory: fdbqueue.Database, call: Callable[..., Any], one: Any) -> None:
    """Its letters, numbers or keys would be put one by one."""
    queue = fdbqueue.TaskQueue.create(memory, "q")
    with pytest.raises(WrongType, match="must be several values"):
        call(memory, one)
    assert (queue.tasks(memory, "r", 1), fdbqueue.Queue(ROOT).size(memory)) == ([], 0)
    assert len(fdbqueue.list_queues(memory)) == 1


KEYED: dict[str, Callable[[Any, Any], Any]] = {
    "key": lambda db, key: fdbqueue.TaskQueue.open(db, "q").put(db, 1, key=key),
    "unique": lambda db, key: fdbqueue.TaskQueue.open(db, "q").put(db, 1, unique=key),
    "FairQueue.put": lambda db, key: fdbqueue.FairQueue(ROOT, key=lambda _: key).put(db, 1),
    "Schedule.create": lambda db, key: fdbqueue.Schedule.create(db, "s", every=60, queue="q", unique=key),
    "TaskQueue.ended_tasks_of": lambda db, key: fdbqueue.TaskQueue.open(db, "q").ended_tasks_of(db, key, 1),
    "Limit.open_key": lambda db, key: fdbqueue.Limit.open_key(db, "slots", key),
}


@pytest.mark.parametrize("call", KEYED.values(), ids=KEYED)
@pytest.mark.parametrize("key", [[1], [], ((1, [2]),)], ids=repr)
def test_a_key_has_no_list(memory: fdbqueue.Database, call: Callable[..., Any], key: Any) -> None:
    """Its key would be that of the tuple."""
    queue = fdbqueue.TaskQueue.create(memory, "q", "utube")
    fdbqueue.Limit.set(memory, "slots", slots=1, per_key=True)
    with pytest.raises(InvalidArgument, match="must be a tuple in place of each list"):
        call(memory, key)
    assert queue.tasks(memory, "r", 1) == []


@pytest.mark.parametrize("key", [1 << 3_000, nested(900), nested(limits.TASK_KEY_DEPTH_MAX + 1), SURROGATE])
def test_a_key_that_cannot_be_stored_is_refused(memory: fdbqueue.Database, key: Any) -> None:
    queue = fdbqueue.TaskQueue.create(memory, "q", "utube")
    with pytest.raises(InvalidArgument, match=r"^key must be"):
        queue.put(memory, 1, key=key)
    queue.put(memory, 1, key=nested(limits.TASK_KEY_DEPTH_MAX))
    assert queue.statistics(memory)["tasks"]["total"] == 1


@pytest.mark.parametrize("shown", [-1, 1.5, True, "1", None])
def test_the_count_that_settles_is_whole(memory: fdbqueue.Database, shown: Any) -> None:
    queue = fdbqueue.Queue(ROOT)
    queue.enqueue_many(memory, [1, 2, 3])
    holder = queue.holder(memory)
    holder.hold(3)
    with pytest.raises(InvalidArgument, match=r"^shown must be"):
        holder.settle(shown)
    assert holder.settle(0)
    assert queue.size(memory) == 3


@pytest.mark.parametrize("stop", [7, "now", True, type("Never", (), {"is_set": bool})], ids=repr)
def test_an_object_that_is_no_event_cannot_stop_a_call(memory: fdbqueue.Database, stop: Any) -> None:
    kept = fdbqueue.PersistentQueue(memory, "kept")
    before = stored(memory)
    for call in (fdbqueue.Queue(ROOT).dequeue, fdbqueue.FairQueue(ROOT["f"], key=str).get):
        with pytest.raises(InvalidArgument, match=r"^stop must be an event"):
            call(memory, stop=stop)
    for wait in (kept.get, kept.join, lambda **given: kept.put(1, **given)):
        with pytest.raises(InvalidArgument, match=r"^stop must be an event"):
            wait(stop=stop)
    assert stored(memory) == before


# Messages.


class Odd:
    """It cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


@pytest.mark.parametrize(
    "value",
    ["x" * 9_000_000, b"x" * 9_000_000, nested(5_000), 10**5_000, Odd(), [Odd()], "\x1b[2J\u202e\n" * 1_000],
    ids=["text", "bytes", "deep", "number", "odd", "odd in a list", "escapes"],
)
def test_a_refusal_is_short_whatever_the_value(value: Any) -> None:
    """The error has the whole value as an attribute."""
    with pytest.raises(InvalidArgument) as refused:
        fdbqueue.Queue(ROOT, contended=value)
    message = str(refused.value)
    assert message.startswith('contended must be "staged" or "simple", not ')
    assert len(message) < 1_000
    assert message.isprintable()
    assert refused.value.got is value  # type: ignore[attr-defined]


def test_a_payload_in_a_message_is_cut(memory: fdbqueue.Database) -> None:
    payload = "p" * 100_000
    kept = fdbqueue.PersistentQueue(memory, "kept")
    pieces = fdbqueue.ElementQueue(ROOT, {"body": "table"})
    calls: list[Callable[[], Any]] = [
        lambda: kept.ack(payload),
        lambda: pieces.add(memory, payload),  # type: ignore[arg-type]
        lambda: pieces.add(memory, {payload: {}}),
        lambda: pieces.add(memory, {"body": payload}),
        lambda: pieces.add(memory, {"body": {payload: 7}}),
        lambda: pieces.get(memory, payload),
    ]
    for call in calls:
        with pytest.raises(FdbQueueError) as refused:
            call()
        assert len(str(refused.value)) < 1_000


def test_a_message_has_the_data_of_its_error() -> None:
    error = QueueFull(name="a\nb", current_size=5, capacity=4, wanted=1, item="x", cure="")
    told = r"The queue 'a\nb' has no room for 1 task: it holds 5 tasks, its capacity is 4. Nothing was put."
    assert str(error) == told


# Fleets.


@pytest.mark.parametrize(
    "wrong",
    [
        {"handler": 5},
        {"url": 7},
        {"url": f"embedded:{SURROGATE}"},
        {"grace_s": math.inf},
        {"argument": object},
        {"argument": math.nan},
        {"argument": {1: 2}},
        {"stdout": -1},
        {"stdout": "out"},
        {"queues": 7},
        {"queues": [7]},
        {"root": "fdbqueue"},
    ],
    ids=repr,
)
def test_a_fleet_that_could_not_start_is_refused(tmp_path: Any, wrong: dict[str, Any]) -> None:
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as database:
        fdbqueue.TaskQueue.create(database, "q")
    with pytest.raises(InvalidArgument, match=f"^{next(iter(wrong)).removesuffix('s')}|^name"):
        fdbqueue.Fleet(**({"url": url, "queues": "q", "handler": "builtins:print"} | wrong))


def test_a_process_with_truncated_orders_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the rest until its supervisor ends."""
    started: list[subprocess.Popen[bytes]] = []
    start, write = subprocess.Popen, os.write

    def starting(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        return started[-1]

    def interrupted(descriptor: int, line: bytes) -> int:
        if started:
            raise KeyboardInterrupt
        return write(descriptor, line)

    monkeypatch.setattr("fdbqueue.fleet.supervisor.subprocess.Popen", starting)
    monkeypatch.setattr("fdbqueue.fleet.supervisor.os.write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Process(Orders("memory:", "", {"q": 1}, "builtins:print"), None)
    assert started[0].wait(20) != 0


def test_a_definition_that_is_none_is_refused(memory: fdbqueue.Database) -> None:
    with pytest.raises(InvalidArgument, match=r"^definition must be"):
        fdbqueue.TaskQueue(memory, Registry(), "q")  # type: ignore[arg-type]
