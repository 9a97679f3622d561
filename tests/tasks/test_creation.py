"""Named task queues: creating, opening, listing, dropping, and what goes wrong (sections 7, 8, 13)."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from math import inf
from typing import Any

import pytest

import fdbqueue
from fdbqueue import (
    Database,
    Limit,
    Queue,
    Task,
    TaskQueue,
    list_queues,
    register_kind,
    statistics,
    transactional,
)
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    InvalidArgument,
    KindExists,
    QueueExists,
    QueueNotFound,
    UnknownCodec,
    UnknownKind,
    UnsupportedOption,
)
from fdbqueue.core.registry import Definition
from fdbqueue.tasks import options
from fdbqueue.tasks.options import Settings, kind_named, stored_settings
from fdbqueue.tasks.stored.discipline import Fifo
from fdbqueue.tasks.stored.records import Record
from tests.page import page
from tests.tasks.support import MakeBench

TASKS_PAGE = page("docs/tasks.md")


def test_a_queue_keeps_its_kind_and_options(still_db: fdbqueue.Database) -> None:
    TaskQueue.create(still_db, "é x" * 14, "limfifottl", ttl=60, pri=3, capacity=9)
    again = TaskQueue.open(still_db, "é x" * 14)
    assert (again.kind, again.name) == ("limfifottl", "é x" * 14)
    assert {name: again.options[name] for name in ("ttl", "ttr", "pri", "capacity")} == {
        "ttl": 60,
        "ttr": None,
        "pri": 3,
        "capacity": 9,
    }
    task = again.put(still_db, 1)
    assert (task.pri, task.expires) == (3, task.created + 60)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"retain_s": 9, "partitions": 2, "codec": "msgpack"}, "fifo"),
        ({"ttr": 30}, "fifottl"),
        ({"ttl": 30, "pri": 3}, "fifottl"),
        ({"capacity": 9, "ttr": 30}, "limfifottl"),
        ({"key_concurrency": 2}, "utube"),
        ({"key_concurrency": 2, "ttr": 30}, "utubettl"),
        ({"weights": {"gold": 3}, "ttr": 30, "capacity": 9}, "fair"),
    ],
)
def test_without_a_kind_it_is_the_first_with_the_options(
    still_db: fdbqueue.Database, options: dict[str, Any], kind: str
) -> None:
    assert TaskQueue.create(still_db, "q", **options).kind == kind


def test_options_that_no_kind_has_together_are_refused(still_db: fdbqueue.Database) -> None:
    with pytest.raises(UnsupportedOption, match="'pri': fifottl, limfifottl and utubettl do"):
        TaskQueue.create(still_db, "q", pri=3, weights={"gold": 3})
    assert list_queues(still_db) == []


def test_creating_a_queue_twice_is_refused(bench: MakeBench) -> None:
    b = bench()
    with pytest.raises(
        QueueExists, match="with kind = fifo, ttl = none; asked for was kind = fifottl, ttl = 5"
    ):
        TaskQueue.create(b.db, "bench", "fifottl", ttl=5)
    assert TaskQueue.open(b.db, "bench").kind == "fifo"


OTHERS: list[tuple[dict[str, Any], dict[str, tuple[Any, Any]]]] = [
    ({"kind": "fifo"}, {"kind": ("limfifottl", "fifo")}),
    ({"kind": "limfifottl", "ttl": 60, "ttr": 9}, {"ttr": (60, 9)}),
    ({"kind": "fifottl", "ttl": 61}, {"kind": ("limfifottl", "fifottl"), "ttl": (60, 61)}),
    ({"kind": "limfifottl", "ttl": inf, "ttr": inf}, {"ttl": (60, None), "ttr": (60, None)}),
    ({"kind": "limfifottl", "pri": 0}, {"pri": (3, 0)}),
    ({"kind": "limfifottl", "capacity": 0}, {"capacity": (9, None)}),
    ({"partitions": 1}, {"partitions": (2, 1)}),
    ({"codec": "json"}, {"codec": ("msgpack", "json")}),
    ({"retain_s": 1}, {"retain_s": (None, 1)}),
    ({"result_ttl": 1}, {"result_ttl": (None, 1)}),
    ({"limits": ["one"]}, {"limits": ([], ["one"])}),
    ({"task_limits": ["two"]}, {"task_limits": (["one"], ["two"])}),
    ({"temporary": True}, {"temporary": (False, True)}),
]


@pytest.fixture
def full(still_db: fdbqueue.Database) -> dict[str, Any]:
    """The kind and the options of a queue that is there."""
    for name in ("one", "two"):
        Limit.set(still_db, name, slots=1)
    options = {
        "ttl": 60,
        "pri": 3,
        "capacity": 9,
        "codec": "msgpack",
        "partitions": 2,
        "task_limits": ["one"],
    }
    TaskQueue.create(still_db, "full", "limfifottl", **options)  # type: ignore[arg-type]
    return {"kind": "limfifottl", **options}


@pytest.mark.parametrize(("asked", "differing"), OTHERS, ids=[str(asked) for asked, _ in OTHERS])
@pytest.mark.parametrize("within", [False, True], ids=["database", "transaction"])
def test_if_not_exists_refuses_another_kind_and_other_options(
    still_db: fdbqueue.Database, full: dict[str, Any], asked: Any, differing: Any, within: bool
) -> None:
    target = still_db.create_transaction() if within else still_db
    with pytest.raises(QueueExists, match=r'or as it is: if_not_exists="any"\.$') as raised:
        TaskQueue.create(target, "full", if_not_exists=True, **asked)
    assert raised.value.differing == differing
    assert TaskQueue.create(target, "full", if_not_exists="any", **asked).kind == full["kind"]


def test_if_not_exists_asks_only_for_options_that_are_given(
    still_db: fdbqueue.Database, full: dict[str, Any]
) -> None:
    """Each in any form that means the same."""
    put = TaskQueue.create(still_db, "full", if_not_exists=True).put(still_db, 1)
    for name, value in full.items():
        asked = {"kind": full["kind"], name: value}
        assert TaskQueue.create(still_db, "full", if_not_exists=True, **asked).peek(still_db, put.id) == put
    alike: dict[str, Any] = {"ttl": 60.0, "ttr": 60, "task_limits": iter(["one", "one"]), "limits": ()}
    TaskQueue.create(still_db, "full", "limfifottl", if_not_exists=True, **alike)
    assert TaskQueue.create(still_db, "new", "fifottl", ttl=1, if_not_exists=True).kind == "fifottl"


def test_a_lease_without_end_is_no_lease_of_the_ttl(still_db: fdbqueue.Database) -> None:
    TaskQueue.create(still_db, "q", "fifottl", ttl=60, ttr=inf)
    TaskQueue.create(still_db, "q", "fifottl", ttr=inf, if_not_exists=True)
    with pytest.raises(QueueExists):
        TaskQueue.create(still_db, "q", "fifottl", ttr=60, if_not_exists=True)


def test_weights_are_compared_by_task_key(still_db: fdbqueue.Database) -> None:
    TaskQueue.create(still_db, "q", "fair", weights={"gold": 3, 7: 2})
    TaskQueue.create(still_db, "q", "fair", weights={7: 2, "gold": 3}, if_not_exists=True)
    with pytest.raises(QueueExists) as raised:
        TaskQueue.create(still_db, "q", "fair", weights={"gold": 4}, if_not_exists=True)
    assert raised.value.differing == {"weights": ({"gold": 3, 7: 2}, {"gold": 4})}


@pytest.mark.parametrize("wish", ["all", 2, None, []])
def test_if_not_exists_is_true_or_any(still_db: fdbqueue.Database, wish: Any) -> None:
    with pytest.raises(InvalidArgument, match='if_not_exists must be True, False or "any"'):
        TaskQueue.create(still_db, "q", if_not_exists=wish)


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        ("fifoo", {}, UnknownKind),
        (5, {}, UnknownKind),
        ("fifo", {"ttl": 1}, UnsupportedOption),
        ("fifo", {"pri": 1}, UnsupportedOption),
        ("fifottl", {"capacity": 1}, UnsupportedOption),
        ("fifottl", {"key_concurrency": 2}, UnsupportedOption),
        ("fifottl", {"weights": {"a": 1}}, UnsupportedOption),
        ("fifo", {"codec": "pickle"}, UnknownCodec),
    ],
)
def test_bad_definitions_are_refused(
    still_db: fdbqueue.Database, kind: str, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        TaskQueue.create(still_db, "bad", kind, **options)  # type: ignore[arg-type]
    assert list_queues(still_db) == []


@pytest.mark.parametrize("name", ["", 5, None])
def test_a_name_is_a_text_that_is_not_empty(still_db: fdbqueue.Database, name: str) -> None:
    with pytest.raises(InvalidArgument):
        TaskQueue.create(still_db, name)
    with pytest.raises(InvalidArgument):
        TaskQueue.open(still_db, name)


def test_a_recipe_queue_is_no_task_queue(still_db: fdbqueue.Database) -> None:
    Queue.named(still_db, "plain")
    with pytest.raises(UnknownKind, match="there are fifo, fifottl, "):
        TaskQueue.open(still_db, "plain")
    TaskQueue.create(still_db, "tasks")
    assert list_queues(still_db) == ["plain", "tasks"]
    assert statistics(still_db).keys() == {"tasks"}


def test_statistics_of_all_queues(still_db: fdbqueue.Database) -> None:
    one, two = TaskQueue.create(still_db, "one"), TaskQueue.create(still_db, "two")
    one.put_many(still_db, [1, 2])
    two.put(still_db, 3)
    counted = {name: found["calls"]["put"] for name, found in statistics(still_db).items()}
    assert counted == {"one": 2, "two": 1}


@pytest.fixture
def kind() -> Iterator[str]:
    yield "lifo"
    options._kinds.pop("lifo", None)


class Lifo(Fifo):
    """Places so that the newest comes first."""

    def place(self, record: Record) -> bytes:
        return bytes(255 - byte for byte in record.id) + record.id


def test_a_registered_kind_is_a_discipline_and_options(still_db: fdbqueue.Database, kind: str) -> None:
    register_kind(kind, Lifo, {"ttr"})
    queue = TaskQueue.create(still_db, "custom", kind, ttr=5)
    queue.put_many(still_db, [1, 2, 3])
    assert [task.data for task in queue.take_many(still_db, 9)] == [3, 2, 1]
    with pytest.raises(UnsupportedOption):
        queue.put(still_db, 4, pri=1)


class Asking(Fifo):
    """Notes that a put has asked."""

    def ask_put(self, tr: Any, keys: Any) -> Any:
        tr.set(b"asked", b"")
        return super().ask_put(tr, keys)


def test_a_put_asks_a_discipline_that_has_reads_of_its_own(still_db: fdbqueue.Database, kind: str) -> None:
    register_kind(kind, Asking, {"ttr"})
    TaskQueue.create(still_db, "custom", kind).put(still_db, 1)
    assert still_db.get(b"asked") is not None


def test_a_kind_is_registered_once_and_with_known_options(kind: str) -> None:
    for taken in ("fifo", "limfifottl"):
        with pytest.raises(KindExists):
            register_kind(taken, Fifo, ())
    with pytest.raises(InvalidArgument):
        register_kind(kind, Fifo, {"colour"})


def test_a_queue_created_in_a_transaction_exists_once_committed(
    still_db: fdbqueue.Database,
) -> None:
    tr = still_db.create_transaction()
    inside = TaskQueue.create(tr, "inside")
    inside.put(tr, "with it")
    with pytest.raises(QueueNotFound):
        TaskQueue.open(still_db, "inside")
    tr.commit().wait()
    task = inside.take(still_db, 0)
    assert task.data == "with it"


def test_a_task_of_a_queue_is_as_one_of_the_constructor(still_db: fdbqueue.Database) -> None:
    queue = TaskQueue.create(still_db, "q")
    put = queue.put(still_db, 1, headers={"a": "b"})
    made = Task(**{field.name: getattr(put, field.name) for field in fields(Task)})
    assert (put, repr(put), type(put)) == (made, repr(made), Task)
    assert pickle.loads(pickle.dumps(put)) == replace(put, pri=put.pri) == put
    with pytest.raises(AttributeError):
        put.pri = 1  # type: ignore[misc]


def test_a_stored_option_that_is_missing_has_its_default() -> None:
    assert stored_settings(Definition("q", 1, "utube", {})).to_options() == Settings().to_options()


def test_every_kind_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", TASKS_PAGE, re.MULTILINE))
    assert rows.keys() >= {"fifo", "fifottl", "limfifottl"}
    for option in ("ttl", "ttr", "pri", "delay"):
        assert f"`{option}`" in rows["fifottl"]
        assert kind_named("fifottl").supports(option)
        assert not kind_named("fifo").supports(option)


def test_the_bounds_of_a_task_and_of_a_batch_are_on_the_page() -> None:
    numbers = re.search(r"^## Numbers\n(.*?)^## ", TASKS_PAGE, re.MULTILINE | re.DOTALL)
    assert numbers is not None
    bounds = (limits.PAYLOAD_BYTES_MAX, limits.TASK_KEY_BYTES_MAX, limits.HEADERS_BYTES_MAX)
    for bound in (*bounds, limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX, limits.PUT_BYTES_MAX):
        assert f"{bound:,}" in numbers[1]
    assert limits.SPAN_MAX_S == 100 * 365 * 86_400
    assert "a hundred years (`limits.SPAN_MAX_S`)" in numbers[1]


@pytest.mark.parametrize(
    ("name", "options"),
    [("again", {}), ("q", {"kind": "fifo"}), ("q", {"codec": "msgpack"}), ("q", {"ttl": 9})],
)
def test_a_create_that_does_not_commit_hinders_no_other(
    db: Database, space: Any, name: str, options: dict[str, Any]
) -> None:
    """The other queue gets the same id."""

    def make(tr: Any, name: str, options: dict[str, Any], fails: bool) -> None:
        queue = TaskQueue.create(tr, name, **{"kind": "fifottl", **options}, root=space)
        queue.put(tr, 1)
        if fails:
            raise KeyError(name)

    run = transactional(make)
    with pytest.raises(KeyError):
        run(db, "q", {"ttl": 5}, fails=True)
    run(db, name, options, fails=False)
    queue = TaskQueue.open(db, name, root=space)
    queue.put(db, 2)
    assert [queue.ack(db, task).data for task in queue.take_many(db, 2)] == [1, 2]
