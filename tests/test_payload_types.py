"""Payloads of other types than JSON has: refused by type and place, carried by handles with a type."""

import dataclasses
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, FairQueue, FdbQueueError, PersistentQueue, Queue, Session, TaskQueue, Worker
from fdbqueue.core import codec as codecs
from fdbqueue.core.codec import MsgspecCodec, RegisteredCodec, codec_named, register_codec
from fdbqueue.core.errors import (
    CodecExists,
    InvalidArgument,
    PayloadMismatch,
    PayloadUnreadable,
    PayloadUnsupported,
    UnknownCodec,
)
from fdbqueue.core.sessions.ending import end_session
from tests.support import wait_until


@dataclasses.dataclass
class Line:
    product: UUID
    price: Decimal


@dataclasses.dataclass
class Order:
    when: datetime
    lines: list[Line]
    due: date | None = None


class Point(msgspec.Struct):
    x: int
    y: int


LINE = Line(UUID(int=7), Decimal("1.50"))
ORDER = Order(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), [LINE], date(2026, 1, 3))
TYPED: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (Order | None, ORDER),
    (Point, Point(1, 2)),
    (datetime, datetime(2026, 1, 2)),
    (timedelta, timedelta(seconds=1.5)),
    (UUID, UUID(int=1)),
    (Decimal, Decimal("0.10")),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (dict[int, str], {1: "a"}),
    (bytes, b"\x00\xff"),
]


@pytest.fixture
def db() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        yield database


@pytest.fixture
def pickled() -> Iterator[str]:
    """A codec that this process knows while the test runs."""
    register_codec("pickle", Pickle())
    yield "pickle"
    codecs._registered.pop("pickle", None)


class Pickle:
    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def decode(self, payload: bytes) -> Any:
        return pickle.loads(payload)


@pytest.mark.parametrize(
    ("value", "type_", "place"),
    [
        ({"when": datetime(2026, 1, 2)}, "datetime", 'data["when"]'),
        ([1, {"a": [UUID(int=1)]}], "UUID", 'data[1]["a"][0]'),
        ({"a": (1,)}, "tuple", 'data["a"]'),
        ({1, 2}, "set", "data"),
        ([math.nan], "float", "data[0]"),
        (math.inf, "float", "data"),
        ([b"bytes"], "bytes", "data[0]"),
        ({"a": {1: "x"}}, "int", 'data["a"], key 1'),
        ({"a": {None: "x"}}, "NoneType", 'data["a"], key None'),
        ([{"a": "\ud800"}], "str", 'data[0]["a"]'),
        ({"a": {"b": [1, object()]}}, "object", 'data["a"]["b"][1]'),
        ({"line": [LINE]}, "Line", 'data["line"][0]'),
        ({"p": Point(1, len)}, "builtin_function_or_method", 'data["p"].y'),  # type: ignore[arg-type]
        ({"a\n": (1,)}, "tuple", "data['a\\n']"),
    ],
)
def test_a_refusal_names_type_and_place(value: Any, type_: str, place: str) -> None:
    with pytest.raises(TypeError, match="codec 'json' cannot carry") as refusal:
        codec_named("json").encode(value)
    assert isinstance(refusal.value, PayloadUnsupported)
    assert (refusal.value.type, refusal.value.place) == (type_, place)
    assert f"{type_} at {place}: " in str(refusal.value)


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_deep_and_circular_values_are_refused_in_a_line(name: str) -> None:
    deep: Any = (1,)
    for _ in range(2000):
        deep = [deep]
    loop: list[Any] = [object()]
    loop.append(loop)
    for value in (deep, loop, {"a" * 10_000: (1,)}):
        with pytest.raises(PayloadUnsupported) as refusal:
            codec_named(name).encode(value)
        assert len(str(refusal.value)) < 500


def test_a_batch_tells_which_of_its_values_is_refused(db: Database) -> None:
    tasks, plain = TaskQueue.create(db, "tasks"), Queue.named(db, "plain")
    for put in (tasks.put_many, plain.enqueue_many):
        with pytest.raises(PayloadUnsupported, match=r'datetime at data\[1\]\["when"\]'):
            put(db, [{}, {"when": datetime(2026, 1, 2)}])
    assert (tasks.statistics(db)["tasks"]["total"], plain.size(db)) == (0, 0)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(("type_", "value"), TYPED, ids=repr)
def test_a_handle_with_a_type_carries_its_values(name: str, type_: Any, value: Any) -> None:
    codec = codec_named(name, type_)
    back = codec.decode(codec.encode(value))
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        (
            Order,
            {"when": 1, "lines": []},
            "it does not fit Order: Expected `datetime`, got `int` at data.when",
        ),
        (Order, Order("soon", []), "Invalid RFC3339 encoded datetime at data.when"),  # type: ignore[arg-type]
        (list[Point], [Point(1, 2), Point(1, "b")], r"got `str` at data\[1\].y"),  # type: ignore[arg-type]
        (Point, Point(1, True), "Expected `int`, got `bool` at data.y"),
        (str, UUID(int=1), "cannot carry UUID at data: it would come back as str"),
    ],
)
def test_a_value_of_another_type_is_refused(type_: Any, value: Any, reason: str) -> None:
    with pytest.raises(PayloadUnsupported, match=reason):
        codec_named("json", type_).encode(value)


def test_stored_bytes_do_not_depend_on_the_type() -> None:
    """Handles of every type read the payloads of all others."""
    value = {"text": "ä", "n": [1, -2.5, 2**63], "none": None, "yes": True}
    stored = b'{"text":"\xc3\xa4","n":[1,-2.5,9223372036854775808],"none":null,"yes":true}'
    packed = bytes.fromhex(
        "84a474657874a2c3a4a16e9301cbc004000000000000cf8000000000000000a46e6f6e65c0a3796573c3"
    )
    for type_ in (None, dict[str, Any]):
        assert codec_named("json", type_).encode(value) == stored
        assert codec_named("msgpack", type_).encode(value) == packed
        assert codec_named("json", type_).decode(stored) == value
        assert codec_named("msgpack", type_).decode(packed) == value


def test_nothing_is_imported_because_of_data() -> None:
    """A name in a payload is a text, whatever it is called."""
    before = set(sys.modules)
    assert b"Order" not in codec_named("json", Order).encode(ORDER)
    payload = b'{"type":"antigravity","__class__":"antigravity.X","x":1,"y":2}'
    assert codec_named("json").decode(payload)["type"] == "antigravity"
    assert codec_named("json", Point).decode(payload) == Point(1, 2)
    assert set(sys.modules) == before


@pytest.mark.parametrize("type_", [3, "Order", Annotated[int, {}]], ids=["number", "text", "without_hash"])
def test_a_type_that_is_none_is_refused(db: Database, type_: Any) -> None:
    TaskQueue.create(db, "there")
    space = Subspace(("plain",))
    opening: list[Callable[[], Any]] = [
        lambda: TaskQueue.open(db, "there", type=type_),
        lambda: TaskQueue.create(db, "new", type=type_),
        lambda: Queue(space, type=type_),
        lambda: Queue.named(db, "new", type=type_),
        lambda: FairQueue(space, key=str, type=type_),
        lambda: PersistentQueue(db, "new", type=type_),
        lambda: Queue(space, codec="bytes", type=bytes),
    ]
    for make in opening:
        with pytest.raises(InvalidArgument, match="type must be"):
            make()


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_queues_of_every_sort_carry_types(db: Database, codec: str) -> None:
    space = Subspace(("space",))
    bare = Queue(space["plain"], codec=codec, type=Order)
    named = Queue.named(db, "plain", codec=codec, type=Order)
    for queue in (bare, named):
        queue.enqueue_many(db, [ORDER] * 4)
        assert queue.peek(db) == queue.dequeue(db) == queue.dequeue(db, timeout=1) == ORDER
        assert (queue.items(db, 9), queue.dequeue_many(db, 9)) == ([ORDER] * 2, [ORDER] * 2)
    fair = FairQueue(space["fair"], key=lambda order: order.lines[0].product.bytes, codec=codec, type=Order)
    fair.put(db, ORDER)
    assert [items for _, items in fair.snapshot(db).lines] == [[ORDER]]
    assert fair.get(db) == ORDER
    persistent = PersistentQueue(db, "persistent", codec=codec, type=Order)
    persistent.put(ORDER)
    persistent.ack(persistent.get())
    tasks = TaskQueue.create(db, "tasks", codec=codec, type=Order)
    tasks.put(db, ORDER)
    tasks.put_many(db, [ORDER])
    assert [task.data for task in tasks.tasks(db, "r", 9)] == [ORDER] * 2
    assert tasks.peek(db, tasks.take(db, 0)).data == ORDER
    done: list[Any] = []
    tasks.release_all(db)
    Worker(db, tasks, lambda task: done.append(task.data), threads=1).run(until_empty=True)
    assert done == [ORDER] * 2


def test_handles_of_one_queue_may_have_different_types(db: Database) -> None:
    """In one process, at one time; each reads with its own, and so does the callback of each."""
    plain = TaskQueue.create(db, "points", "fifottl")
    typed = TaskQueue.open(db, "points", type=Point)
    told: list[Any] = []
    typed.on_task_change(lambda task, event: told.append((event, task.data)))
    plain.put(db, {"x": 1, "y": 2})
    typed.put(db, Point(3, 4))
    first, second = plain.take(db, 0), typed.take(db, 0)
    assert first is not None
    assert second is not None
    assert (first.data, second.data) == ({"x": 1, "y": 2}, Point(3, 4))
    assert plain.ack(db, first.id).data == {"x": 1, "y": 2}
    assert typed.delete(db, second.id).data == Point(3, 4)
    wait_until(lambda: len(told) == 6)
    assert told[:4] == [
        ("put", Point(1, 2)),
        ("put", Point(3, 4)),
        ("take", Point(1, 2)),
        ("take", Point(3, 4)),
    ]


def test_a_class_that_fails_when_it_is_made_is_a_mismatch() -> None:
    @dataclasses.dataclass
    class Picky:
        n: int

        def __post_init__(self) -> None:
            if self.n > 1:
                raise KeyError(self.n)

    codec = codec_named("json", Picky)
    assert codec.decode(codec.encode(Picky(1))) == Picky(1)
    with pytest.raises(PayloadMismatch, match="Picky"):
        codec.decode(b'{"n":2}')


# Codecs of the user's own.


def test_a_registered_codec_carries_its_own_types(db: Database, pickled: str) -> None:
    value = {"when": datetime(2026, 1, 2), "both": (1, {2})}
    tasks = TaskQueue.create(db, "tasks", codec=pickled)
    tasks.put(db, value)
    Worker(db, "tasks", lambda task: task.data == value or 1 / 0).run(until_empty=True)
    assert tasks.statistics(db)["calls"]["ack"] == 1
    for queue in (Queue(Subspace(("plain",)), codec=pickled), Queue.named(db, "plain", codec=pickled)):
        queue.enqueue(db, value)
        assert queue.dequeue(db) == value
    fair = FairQueue(Subspace(("fair",)), key=len, codec=pickled)
    fair.put(db, value)
    assert fair.get(db) == value
    persistent = PersistentQueue(db, "persistent", codec=pickled)
    persistent.put(value)
    assert persistent.get() == value


def test_the_name_of_a_codec_is_taken_once(pickled: str) -> None:
    for name in ("json", "bytes", "msgpack", pickled):
        with pytest.raises(CodecExists, match=name):
            register_codec(name, Pickle())


class AsyncCodec(Pickle):
    async def decode(self, payload: bytes) -> Any:
        return pickle.loads(payload)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("", Pickle()), (None, Pickle()), ("x" * 101, Pickle()), ("x", object()), ("x", AsyncCodec())],
)
def test_a_codec_that_is_none_is_refused(name: Any, codec: Any) -> None:
    with pytest.raises(InvalidArgument):
        register_codec(name, codec)


def test_a_codec_that_returns_no_bytes_is_refused(db: Database, pickled: str, monkeypatch: Any) -> None:
    queue = TaskQueue.create(db, "tasks", codec=pickled)
    monkeypatch.setattr(Pickle, "encode", lambda *_: "text")
    with pytest.raises(TypeError, match="returned str instead of bytes"):
        queue.put(db, 1)


def test_bytes_that_a_codec_refuses_are_unreadable(db: Database, pickled: str) -> None:
    Queue(Subspace(("plain",))).enqueue(db, 1)
    with pytest.raises(PayloadUnreadable, match="Codec 'pickle'"):
        Queue(Subspace(("plain",)), codec=pickled).dequeue(db)


def test_a_codec_may_say_that_it_does_not_know_a_format_yet(
    db: Database, pickled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise UnknownCodec(codec="pickle, format 2")

    queue = TaskQueue.create(db, "tasks", codec=pickled)
    queue.put(db, 1)
    monkeypatch.setattr(Pickle, "decode", refuse)
    with pytest.raises(UnknownCodec):
        queue.take(db, 0)
    assert queue.statistics(db)["tasks"]["ready"] == 1


@pytest.fixture
def strange(db: Database, pickled: str) -> list[Any]:
    """A task queue and a plain queue of three items each; their codec is gone from this process."""
    tasks = TaskQueue.create(db, "tasks", "fifottl", codec=pickled)
    tasks.put_many(db, [1, 2, 3])
    plain = Queue.named(db, "plain", codec=pickled)
    plain.enqueue_many(db, [1, 2, 3])
    codecs._registered.clear()
    return [TaskQueue.open(db, "tasks"), Queue.named(db, "plain")]


def test_a_missing_codec_moves_nothing(db: Database, strange: list[Any]) -> None:
    """Neither a take nor a put changes anything, in a transaction or not, waiting or not."""
    tasks, plain = strange
    calls: list[Callable[[Any], Any]] = [
        lambda tr: tasks.take(tr, 0),
        lambda tr: tasks.take_many(tr, 2),
        lambda tr: tasks.put(tr, 4),
        lambda tr: tasks.tasks(tr, "r", 9),
        lambda tr: plain.dequeue(tr),
        lambda tr: plain.dequeue_many(tr, 2),
        lambda tr: plain.enqueue(tr, 4),
        lambda tr: plain.peek(tr),
    ]
    for call in calls:
        for target in (db, db.create_transaction()):
            with pytest.raises(UnknownCodec, match=r"'pickle'.*register_codec.*Nothing was changed"):
                call(target)
    for waiting in (lambda: tasks.take(db, 5), lambda: plain.dequeue(db, timeout=5)):
        with pytest.raises(UnknownCodec):
            waiting()
    with pytest.raises(UnknownCodec):
        plain.holder(db).hold(2)
    assert tasks.statistics(db)["tasks"]["ready"] == 3
    assert tasks.statistics(db)["calls"]["take"] == 0
    assert plain.size(db) == 3


def test_a_missing_codec_stops_no_housekeeping(db: Database, pickled: str) -> None:
    """Dead sessions end, tasks expire, other queues go on; counting and removing need no payload."""
    tasks = TaskQueue.create(db, "tasks", "fifottl", codec=pickled)
    tasks.put(db, 1)
    tasks.put(db, 2, ttl=0.05)
    session = Session(db, ttr=30)
    tasks.take(db, 0, session=session)
    codecs._registered.clear()
    end_session(db, session._keys, session.id, lambda *_: True, died=True)
    again = TaskQueue.open(db, "tasks")
    wait_until(lambda: again.statistics(db)["calls"]["ttl"] == 1)
    assert again.statistics(db)["tasks"]["ready"] == 1
    assert fdbqueue.statistics(db)["tasks"]["calls"]["release"] == 1
    again.truncate(db)
    again.drop(db)


def test_a_worker_without_the_codec_does_not_start(db: Database, strange: list[Any]) -> None:
    other = TaskQueue.create(db, "other")
    other.put(db, 1)
    with pytest.raises(UnknownCodec):
        Worker(db, ["other", "tasks"], print).run(until_empty=True)
    assert other.statistics(db)["calls"]["take"] == 0
    assert strange[0].statistics(db)["calls"]["take"] == 0


def test_a_codec_may_be_registered_after_the_handle_was_opened(db: Database, strange: list[Any]) -> None:
    register_codec("pickle", Pickle())
    assert strange[0].take(db, 0).data == 1
    assert strange[1].dequeue(db) == 1


def test_unknown_names_are_refused_when_they_are_given(db: Database) -> None:
    space = Subspace(("plain",))
    for make in (
        lambda: Queue(space, codec="zstd"),
        lambda: Queue.named(db, "q", codec="zstd"),
        lambda: FairQueue(space, key=str, codec="zstd"),
        lambda: TaskQueue.create(db, "q", codec="zstd"),
        lambda: PersistentQueue(db, "q", codec="zstd"),
    ):
        with pytest.raises(UnknownCodec, match="'zstd'") as refusal:
            make()
        assert isinstance(refusal.value, FdbQueueError)
    assert fdbqueue.list_queues(db) == []


def test_a_value_of_another_type_is_told_of_any_partition(db: Database, space: Subspace) -> None:
    plain, typed = (Queue.named(db, "q", partitions=3, type=type_, root=space) for type_ in (None, Point))
    while plain.partitions(db)[0].ready or not plain.size(db):  # an item comes into any partition
        if plain.size(db):
            plain.dequeue(db)
        else:
            plain.enqueue(db, 1)
    with pytest.raises(PayloadMismatch):
        typed.dequeue(db)
    assert plain.size(db) > 0


# Codecs without a queue: what goes in comes back equal, or is refused.

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_json_returns_an_equal_value(value: Any) -> None:
    codec = codec_named("json")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("value", [b"\x00\xff", {1: b"x"}, {"a": [None, 1.5]}, 2**63], ids=repr)
def test_msgpack_carries_bytes_and_keys_of_any_type(value: Any) -> None:
    codec = codec_named("msgpack")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    "value", [(1, 2), {1}, 2**64, math.nan, pytest.param(object(), id="an object")], ids=repr
)
def test_msgpack_refuses_what_would_come_back_different(value: Any) -> None:
    with pytest.raises(TypeError):
        codec_named("msgpack").encode(value)


def test_bytes_carries_bytes_only() -> None:
    codec = codec_named("bytes")
    assert codec.decode(codec.encode(b"\x00")) == b"\x00"
    for value in ("text", None, 1, bytearray(b"x")):
        with pytest.raises(TypeError):
            codec.encode(value)


@pytest.mark.parametrize("name", ["pickle", "", None, ["json"]])
def test_an_unknown_codec_is_named_in_the_error(name: Any) -> None:
    with pytest.raises(UnknownCodec) as raised:
        codec_named(name)
    assert raised.value.codec == name


def test_what_another_codec_wrote_is_unreadable() -> None:
    for name in ("json", "msgpack"):
        with pytest.raises(PayloadUnreadable):
            codec_named(name).decode(b"\xc1{")


@pytest.mark.parametrize("name", ["typed", "json", "registered"])
def test_a_payload_is_not_unreadable_for_want_of_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a take would set it aside, though another process can read it."""

    class Full:
        def encode(self, _: object) -> bytes:
            raise MemoryError

        def decode(self, _: bytes) -> object:
            raise MemoryError

    codec = (
        RegisteredCodec(name, Full())
        if name == "registered"
        else MsgspecCodec("json", int if name == "typed" else None)
    )
    if isinstance(codec, MsgspecCodec):
        monkeypatch.setattr(codec, "_decode", Full().decode)
    with pytest.raises(MemoryError):
        codec.decode(b"1")
