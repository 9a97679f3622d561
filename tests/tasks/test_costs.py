"""The costs of groups, of unique keys and of callbacks: round trips, keys, reads, with and without."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Group, Session, TaskQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.calls import Combiner
from fdbqueue.core.database import run
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.group_settling import Settling
from fdbqueue.tasks.options import kind_names
from tests.tasks.support import Bench, StillClock
from tests.tasks.test_callbacks import Told
from tests.tasks.trips import Trips, trips_of
from tests.test_call_counts import calls_of as python_calls


@pytest.mark.parametrize("partitions", [1, 4])
def test_round_trips_of_calls_on_members(trips: tuple[Database, Trips], partitions: int) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl", partitions=partitions)
    session = fdbqueue.Session(db, ttr=1e9)
    queue.take(db, 0, session=session)  # it chooses its homes
    of = Group.create(db)
    waits = lambda body: trips_of(engine, db, body)[0]  # noqa: E731
    assert waits(lambda tr: queue.put(tr, "x")) == 1
    assert waits(lambda tr: of.put(tr, queue, "x")) == 2
    assert waits(lambda tr: of.put_many(tr, queue, range(50))) == 2
    parent = queue.put(db, "parent")
    assert waits(lambda tr: queue.put(tr, "x", after=parent)) <= 4
    assert waits(of.progress) == 1
    queue.ack(db, queue.take(db, 0, session=session))  # type: ignore[arg-type]
    waited, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
    assert waited <= 2 + 2 * (partitions > 1)
    assert waits(lambda tr: queue.ack(tr, task)) == 1
    assert waits(of.close) == 1


def test_keys_of_calls_on_members(db: Database, space: Any) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    of = Group.create(db, root=space)
    of.put(db, queue, 0)  # the counts are there from now on
    writes = lambda body: written(db, body)  # noqa: E731
    put = writes(lambda tr: queue.put(tr, 1))
    assert writes(lambda tr: of.put(tr, queue, 1)) == put + 4
    two = writes(lambda tr: queue.put_many(tr, [1, 2]))
    assert writes(lambda tr: of.put_many(tr, queue, [1, 2])) == two + 5
    member, plain = of.put(db, queue, 1), queue.put(db, 1)
    delete = writes(lambda tr: queue.delete(tr, plain))
    assert (
        writes(lambda tr: queue.delete(tr, member)) == delete + 5
    )  # one of them clears counts that are zero
    assert writes(of.close) == 2
    assert writes(of.cancel) == 2


def written(db: Database, body: Callable[[Any], object]) -> int:
    """The number of writes of a call in a transaction."""
    tr = Counting(db.create_transaction())
    body(tr)
    tr.commit().wait()
    return tr.writes


class Counting:
    """A transaction that counts its writes."""

    def __init__(self, tr: Any) -> None:
        self._tr = tr
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        self.writes += name in ("set", "clear", "clear_range", "add", "compare_and_clear")
        return getattr(self._tr, name)


def test_plain_puts_and_acks_make_no_more_calls_beside_features(db: Database, space: Any) -> None:
    """Members, and tasks with unique keys, in the same queue change nothing for the others."""
    queue = TaskQueue.create(db, "q", root=space)
    queue.put_many(db, range(9))
    plain = [cycle_calls(db, queue) for _ in range(9)]
    queue.put_many(db, range(18))
    Group.create(db, root=space).put_many(db, queue, range(9))
    members = [cycle_calls(db, queue) for _ in range(9)]
    for unique in range(9):
        queue.put(db, "x", unique=unique)
    beside = [cycle_calls(db, queue) for _ in range(9)]
    assert max(min(members), min(beside)) <= min(plain)


def cycle_calls(db: Database, queue: TaskQueue) -> int:
    """The calls above the engine of a put, a take and an ack."""

    def cycle() -> None:
        queue.put(db, 1)
        task = queue.take(db, 0)
        assert task is not None
        queue.ack(db, task)

    return python_calls(cycle)[0]


@pytest.mark.slow
def test_a_drop_with_a_million_members_is_one_small_transaction() -> None:
    judge_removal(1_000_000, "drop")


@pytest.mark.parametrize("verb", ["drop", "truncate"])
def test_a_removal_of_all_members_is_one_small_transaction(verb: str) -> None:
    judge_removal(3_000, verb)


def judge_removal(members: int, verb: str) -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        queue, then = TaskQueue.create(db, "q"), TaskQueue.create(db, "then")
        of = Group.create(db, then=(then, "x"))
        for _ in range(0, members, limits.BATCH_ITEMS_MAX):
            of.put_many(db, queue, range(min(members, limits.BATCH_ITEMS_MAX)))
        of.close(db)
        total = of.progress(db).total
        writes = written(db, getattr(queue, verb))
        assert writes <= 20
        assert of.progress(db).left == total
        shared = SharedKeys(queue.contents)
        assert len(list(db.get_range(shared.members.start, shared.members.stop))) == 1
        assert list(db.get_range(shared.all_member.start, shared.all_member.stop)) == []
        settling, steps = Settling(db, RootKeys(DEFAULT_ROOT)), 1
        while transactional(settling.tidy)(db):
            steps += 1
        assert steps <= 4
        assert (of.wait(db, 0).failed, of.progress(db).left) == (total, 0)
        assert [task.data for task in then.tasks(db, "r", 9)] == ["x"]
        assert fdbqueue.verify(db).findings == ()


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


BESIDE = "x" * (limits.RECORD_PAYLOAD_BYTES_MAX + 1)
"""A payload beside its record."""
TASKS = 3

Prepare = Callable[[Database, TaskQueue, Session], Any]


def put(**options: Any) -> Prepare:
    return lambda db, queue, _: [queue.put(db, BESIDE, **options) for _ in range(TASKS)]


def take(**options: Any) -> Prepare:
    def prepare(db: Database, queue: TaskQueue, session: Session) -> list[Any]:
        put(**options)(db, queue, session)
        return [queue.take(db, 0, session=session) for _ in range(TASKS)]

    return prepare


def take_and_cancel(db: Database, queue: TaskQueue, session: Session) -> None:
    for task in take(ttr=5)(db, queue, session):
        queue.cancel(db, task.id)


@pytest.mark.parametrize(
    ("prepare", "events"),
    [
        (put(delay=5), ["delay"]),
        (put(ttl=5), ["delete", "ttl"]),
        (put(delay=5, ttl=1), ["delay", "delete", "ttl"]),
        (take(ttr=5), ["ttr"]),
        (take(ttr=6, ttl=5), ["ttr", "delete", "ttl"]),
        (take_and_cancel, ["delete", "cancel"]),
    ],
    ids=["due", "expired", "due-and-expired", "lapsed", "lapsed-and-expired", "cancelled"],
)
def test_a_sweep_reads_each_told_payload_once(
    trips: tuple[Database, Trips], clock: StillClock, prepare: Prepare, events: list[str]
) -> None:
    db, engine = trips
    session = Session(db, ttr=1e9)
    quiet, loud = (TaskQueue.create(db, name, "fifottl") for name in ("quiet", "loud"))
    for queue in (quiet, loud):
        prepare(db, queue, session)
    told = Told()
    loud.on_task_change(told)
    clock.advance(10)
    without, reads = (swept(db, engine, queue) for queue in (quiet, loud))
    assert reads - without == TASKS
    assert sorted(told.names(TASKS * len(events))) == sorted(events * TASKS)
    assert {data for data, _, _ in told.events} == {BESIDE}


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_sweep_tells_no_more_payloads_than_fit(
    trips: tuple[Database, Trips], clock: StillClock, partitions: int
) -> None:
    """All of a batch might be too many to be read within the five seconds of a transaction."""
    db, engine = trips
    queue, told = TaskQueue.create(db, "q", "fifottl", partitions=partitions), Told()
    for _ in range(TASKS):
        queue.put(db, "x" * (limits.TRANSACTION_BYTES_MAX // 2 - limits.BATCH_BYTES_MAX), ttl=5)
    queue.on_task_change(told)
    clock.advance(10)
    left = []
    while tasks_in(db, queue):
        swept(db, engine, queue)
        left.append(tasks_in(db, queue))
    assert left == [1, 0]
    assert sorted(told.names(2 * TASKS)) == ["delete"] * TASKS + ["ttl"] * TASKS


def tasks_in(db: Database, queue: TaskQueue) -> int:
    """The number of tasks, without a sweep."""
    keys = [source.shape.keys.tasks for source in calls_of(db, queue._shape).parts.holding()]
    return sum(len(db.get_range(under.start, under.stop)) for under in keys)


def swept(db: Database, engine: Trips, queue: TaskQueue) -> int:
    """The reads of a sweep of the queue."""
    before = engine.reads
    assert run(db, calls_of(db, queue._shape).parts.tidy)
    return engine.reads - before
