"""The costs of unique keys: round trips, keys and Python calls, with and without."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.calls.combine import Combiner
from fdbqueue.tasks.kinds import kind_names
from tests.tasks.support import Bench
from tests.tasks.trips import Trips, trips_of
from tests.test_call_counts import calls_of

LARGE = "x" * limits.RECORD_PAYLOAD_BYTES_MAX
SCOPES = ["queued", "unfinished", 60]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("kind", "take", "ack"), [("fifottl", 1, 1), ("utube", 2, 2), ("fair", 2, 1)])
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_unique_key_costs_no_round_trip_of_a_new_task(
    trips: tuple[Database, Trips], kind: str, take: int, ack: int, partitions: int, scope: Any
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", kind, partitions=partitions)
    session = fdbqueue.Session(db, ttr=1e9)
    options = {"unique": 1, "scope": scope, "key": None if kind == "fifottl" else "k"}
    if partitions > 1:
        queue.take(db, 0, session=session)  # it chooses its homes
    assert trips_of(engine, db, lambda tr: queue.put(tr, "x", **options))[0] == 1
    assert trips_of(engine, db, lambda tr: queue.put(tr, "x", **options))[0] == 2
    waited, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
    assert waited <= take + 2 * (partitions > 1)
    assert trips_of(engine, db, lambda tr: queue.ack(tr, task))[0] == ack


@pytest.mark.parametrize(("options", "waits"), [({}, 1), ({"unique": 1, "scope": "queued"}, 2)])
def test_a_queued_task_that_comes_back_reads_its_key(
    trips: tuple[Database, Trips], options: dict[str, Any], waits: int
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    session = fdbqueue.Session(db, ttr=1e9)
    queue.put(db, "x", **options)
    task = queue.take(db, 0, session=session)
    assert trips_of(engine, db, lambda tr: queue.release(tr, task))[0] == waits
    again = queue.take(db, 0, session=session)
    assert again is not None
    queue.bury(db, again)
    kicks = trips_of(engine, db, lambda tr: queue.kick(tr))[0]
    assert kicks == waits + 1  # it reads the first buried tasks before them


@pytest.mark.parametrize(("on_conflict", "waits"), [("skip", 3), ("replace", 2)])
def test_a_large_payload_of_an_existing_task_is_one_more_trip(
    trips: tuple[Database, Trips], on_conflict: str, waits: int
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    queue.put(db, LARGE, unique=1)
    body = lambda tr: queue.put(tr, LARGE, unique=1, on_conflict=on_conflict)  # noqa: E731
    assert trips_of(engine, db, body)[0] == waits


@pytest.mark.parametrize(("scope", "keys"), [("queued", 1), ("unfinished", 1), (60, 2)])
def test_a_unique_key_is_one_key_or_two(bench: Callable[..., Bench], scope: Any, keys: int) -> None:
    b = bench("fifottl")

    def put(**options: Any) -> int:
        before = stored(b)
        b.put("x", **options)
        return stored(b) - before

    put()  # the counters are there from now on
    without = put()
    assert put(unique=1, scope=scope) == without + keys
    assert put(unique=1, scope=scope) == 0


def stored(b: Bench) -> int:
    """The number of keys of the queue."""
    return len(list(b.db.get_range_startswith(b.queue.contents.key())))


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("scope", [None, "unfinished", 60])
def test_puts_with_long_keys_fit_into_one_transaction(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, kind: str, scope: Any
) -> None:
    """A combined put counts enough bytes, so that limits.BATCH_ITEMS_MAX of them stay below the bound."""
    b, counted = bench(kind), list[int]()
    call = Combiner.call
    monkeypatch.setattr(Combiner, "call", lambda *args: counted.append(args[3]) or call(*args))
    options: dict[str, Any] = {"headers": {"h": "x" * (limits.HEADERS_BYTES_MAX - 10)}}
    if kind in ("utube", "utubettl", "fair"):
        options["key"] = "k" * (limits.TASK_KEY_BYTES_MAX - 10)
    if scope is not None:
        options |= {"unique": "u" * (limits.TASK_KEY_BYTES_MAX - 10), "scope": scope}
    data = "x" * (limits.RECORD_PAYLOAD_BYTES_MAX - 2)
    b.queue.put(b.db, data, **options)
    b.queue.truncate(b.db)
    tr = b.db.create_transaction()
    b.queue.put(tr, data, **options)
    most = limits.TRANSACTION_BYTES_MAX - limits.BATCH_BYTES_MAX
    trace = 2 * limits.TRACE_BYTES_MAX  # in the record and in the index
    assert tr.get_approximate_size().wait() + trace - counted[0] < most / limits.BATCH_ITEMS_MAX


def test_a_skipping_put_writes_nothing_of_the_queue(bench: Callable[..., Bench]) -> None:
    b = bench("fifottl")
    b.put("x", unique=1)
    before = b.stored()
    tr = b.db.create_transaction()
    b.queue.put(tr, "y", unique=1)
    assert b.stored() == before
    assert not tr.commit().wait()
    assert b.stored() == before


def test_puts_and_acks_without_a_unique_key_make_no_more_calls(db: Database, space: Any) -> None:
    """Tasks with unique keys in the same queue change nothing for the others."""
    queue = TaskQueue.create(db, "q", root=space)
    queue.put_many(db, range(9))
    plain = [cycle_calls(db, queue) for _ in range(9)]
    queue.put_many(db, range(9))
    for unique in range(9):
        queue.put(db, "x", unique=unique)
    beside = [cycle_calls(db, queue) for _ in range(9)]
    assert min(beside) <= min(plain)


def cycle_calls(db: Database, queue: TaskQueue) -> int:
    """The calls above the engine of a put, a take and an ack."""

    def cycle() -> None:
        queue.put(db, 1)
        task = queue.take(db, 0)
        assert task is not None
        queue.ack(db, task)

    return calls_of(cycle)[0]
