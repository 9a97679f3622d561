"""Limits of slots and of starts, which queues share: a task over its limit waits, and needs no polling."""

import threading
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

import fdbqueue
from fdbqueue import Database, Limit, Task, TaskQueue, Why, verify
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, LimitNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.limits.rule import CELLS_MAX, LimitKeys, Rule, cells_bytes, cells_of
from fdbqueue.tasks.limits.state import Bucket, State
from fdbqueue.tasks.options import kind_names
from fdbqueue.tasks.stored.records import id_bytes, record_of, record_to_bytes
from tests.support import NOT_COMMITTED, commit_code, wait_until
from tests.tasks.partitions import MakeParted
from tests.tasks.support import LONG_S, Bench, MakeBench, StillClock
from tests.test_call_counts import CALLS as COUNTED
from tests.test_call_counts import ROOM, RUNS, WARM_UP, calls_of

API, CALLS = "api.example.com", "calls"


@pytest.fixture
def slots(still_db: Database, clock: StillClock) -> MakeBench:
    """A bench of a queue under a limit of slots: `slots(2, "fifottl", ttr=3)`."""

    def make(count: int, kind: str = "fifo", **options: Any) -> Bench:
        Limit.set(still_db, API, slots=count)
        return Bench(still_db, clock, kind, limits=[API], **options)

    return make


def used(db: Any, root: Any = DEFAULT_ROOT) -> int:
    return Limit.open(db, API, root=root).used


def sound(db: Database, root: Any = DEFAULT_ROOT) -> bool:
    return not verify(db, root=root).findings


def test_a_refused_result_writes_nothing(slots: MakeBench) -> None:
    """In a transaction that goes on behind the error."""
    b = slots(1, retain_s=60)
    b.put("x", result_ttl=60, unique="k")
    task, before, tr = b.take(), b.stored(), b.db.create_transaction()
    with pytest.raises(TypeError):
        b.queue.ack(tr, task, result=object())
    tr.commit().wait()
    assert b.stored() == before


@pytest.mark.parametrize("kind", kind_names())
def test_at_most_its_slots_of_tasks_run_at_a_time(slots: MakeBench, kind: str) -> None:
    b = slots(2, kind)
    for number in range(4):
        b.put(number, **({"key": number} if b.queue._shape.kind.supports("key") else {}))

    first, second = b.take(), b.take()

    assert b.take() is None
    assert used(b.db) == 2
    assert sound(b.db)
    b.queue.ack(b.db, first)
    assert b.take() is not None
    assert b.take() is None
    b.queue.ack(b.db, second)
    assert b.take() is not None


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("option", ["limits", "task_limits", "keys"])
def test_an_answer_of_none_relies_on_the_limit_in_all_partitions(
    parted: MakeParted, option: str, partitions: int
) -> None:
    """The slot is one of a task of another queue, so no partition changes when it becomes free."""
    b = parted("fifo")
    Limit.set(b.db, API, slots=1, per_key=option == "keys", root=b.root)
    given: dict[str, Any] = {"limits": [API]} if option == "limits" else {"task_limits": [API]}
    named: Any = {"limits": None, "task_limits": [API], "keys": {API: "a"}}[option]
    other, queue = (
        TaskQueue.create(b.db, name, partitions=parts, root=b.root, **given)
        for name, parts in (("other", 1), ("waits", partitions))
    )
    other.put(b.db, "runs", limits=named)
    task = other.take(b.db, session=b.session)
    assert task is not None
    for number in range(9):
        queue.put(b.db, number, limits=named)
    tr = b.db.create_transaction()
    assert queue.take(tr, session=b.session) is None
    tr.set(b.root.pack(("answer",)), b"none")

    other.ack(b.db, task)

    assert commit_code(tr) == NOT_COMMITTED


def test_takes_of_different_cells_do_not_conflict(slots: MakeBench) -> None:
    b = slots(CELLS_MAX)
    other = TaskQueue.create(b.db, "other", limits=[API])
    b.put(1)
    for number in range(9):
        other.put(b.db, number)
    clashes = 0
    for _ in range(9):
        tr = b.db.create_transaction()
        task = b.queue.take(tr, session=b.session)
        other.take(b.db, 0)
        try:
            tr.commit().wait()
        except fdbqueue.embedded.FDBError:
            clashes += 1
            continue
        b.queue.release(b.db, task)
    assert clashes < 6


def test_starts_beside_a_cell_with_too_many_tasks_conflict(still_db: Database) -> None:
    """The parts of other cells do not bound the sum while a cell is over its own."""
    keys, rule = LimitKeys(RootKeys(DEFAULT_ROOT).prefix, API), Rule(slots=CELLS_MAX)
    still_db[keys.cells] = cells_bytes({0: 3})
    first, second = still_db.create_transaction(), still_db.create_transaction()
    for tr, cell in ((first, 1), (second, 8)):
        State(keys, rule, cells_of(tr.snapshot[keys.cells])).start(tr, 7, cell, 0)
    first.commit().wait()

    with pytest.raises(fdbqueue.embedded.FDBError):
        second.commit().wait()
    assert sum(cells_of(still_db[keys.cells])) == 10


def test_a_start_beside_too_many_conflicts_in_its_cell(still_db: Database) -> None:
    """It has passed the gate of its cell, too."""
    keys, rule = LimitKeys(RootKeys(DEFAULT_ROOT).prefix, API), Rule(slots=CELLS_MAX)
    first, second = still_db.create_transaction(), still_db.create_transaction()
    for tr, numbers in ((first, {0: 3}), (second, {})):
        tr.get_read_version().wait()
        State(keys, rule, cells_of(cells_bytes(numbers))).start(tr, 1, 1, 0)
    second.commit().wait()

    with pytest.raises(fdbqueue.embedded.FDBError):
        first.commit().wait()


WAYS = ("of the queue", "of tasks", "of keys")
WAKES = [*((way, wake) for way in WAYS for wake in ("an ack", "more slots")), ("of tasks", "a free task")]


@pytest.mark.parametrize(("way", "wake"), WAKES)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.usefixtures("without_looks")
def test_a_waiting_take_wakes_when_a_slot_is_free(way: str, wake: str, partitions: int) -> None:
    """The ack is one in another queue."""
    per_key = way == "of keys"
    option: dict[str, Any] = {"limits" if way == "of the queue" else "task_limits": [API]}
    named: Any = {"of the queue": None, "of tasks": [API], "of keys": {API: "a"}}[way]
    with fdbqueue.open("memory:") as db:
        Limit.set(db, API, slots=1, per_key=per_key)
        queue = TaskQueue.create(db, "q", partitions=partitions, **option)
        other = TaskQueue.create(db, "other", **option)
        other.put(db, "first", limits=named)
        first = other.take(db, 0)
        id_ = queue.put(db, "x", limits=named).id
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(queue.take(db, 60)))
        waiting.start()
        wait_until(lambda: queue.explain(db, id_).waiting)
        assert first is not None
        if wake == "more slots":
            Limit.set(db, API, slots=2, per_key=per_key)
        elif wake == "a free task":
            queue.put(db, "x")
        else:
            other.ack(db, first)
        waiting.join(60)
        assert found[0].data == "x"


def starts(b: Bench, count: int = 99) -> int:
    return len(b.queue.take_many(b.db, count, session=b.session))


@pytest.fixture
def rate(still_db: Database, clock: StillClock) -> MakeBench:
    def make(rate: int, per: float, burst: int | None = None, **options: Any) -> Bench:
        Limit.set(still_db, CALLS, rate=rate, per=per, burst=burst)
        b = Bench(still_db, clock, "fifo", limits=[CALLS], **options)
        b.queue.put_many(still_db, list(range(900)))
        return b

    return make


def test_a_burst_starts_at_once_and_then_the_rate(rate: MakeBench) -> None:
    b = rate(100, 50, 20)

    assert starts(b) == 20
    assert starts(b) == 0
    b.clock.advance(5)
    assert starts(b) in (9, 10)
    b.clock.advance(LONG_S)
    assert starts(b) == 20


@pytest.mark.parametrize(("rate_", "per", "burst"), [(100, 60, 20), (7, 1, 1), (50, 1, 300), (3, 10, 3)])
@pytest.mark.parametrize("step_s", [0.01, 0.37, 2.5])
def test_at_most_burst_and_rate_start_in_any_window(
    rate: MakeBench, rate_: int, per: float, burst: int, step_s: float
) -> None:
    b, told = rate(rate_, per, burst), list[float]()
    for _ in range(60):
        told += [b.clock.now()] * starts(b)
        b.clock.advance(step_s)
    for first in range(len(told)):
        within = [time for time in told[first:] if time < told[first] + per]
        assert len(within) <= burst + rate_


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_take_waits_for_the_next_token(
    still_db: Database, clock: StillClock, way: str, partitions: int
) -> None:
    Limit.set(still_db, CALLS, rate=1, per=10, burst=1, per_key=way == "of keys")
    option: dict[str, Any] = {"limits" if way == "of the queue" else "task_limits": [CALLS]}
    named: Any = {"of the queue": None, "of tasks": [CALLS], "of keys": {CALLS: "a"}}[way]
    b = Bench(still_db, clock, "fifo", partitions=partitions, **option)
    for _ in range(2):
        b.put("x", limits=named)
    assert b.take() is not None
    began = clock.now()

    assert b.take(60) is not None

    assert 9.9 < clock.now() - began < 10.5


def test_a_clock_that_is_behind_gets_no_token_twice(rate: MakeBench) -> None:
    b = rate(10, 10, 10)
    assert starts(b) == 10
    b.clock.advance(3)
    assert starts(b) in (2, 3)

    b.clock.advance(-3)

    assert starts(b) == 0


def test_a_clock_far_ahead_does_not_stop_a_limit(rate: MakeBench) -> None:
    b = rate(10, 10, 10)
    b.clock.advance(1e6)
    starts(b)
    b.clock.advance(-1e6)

    assert starts(b) == 10
    assert starts(b) == 0


def test_a_missing_burst_is_a_tenth_of_the_rate(still_db: Database) -> None:
    assert Limit.set(still_db, "a", rate=100, per=60).burst == 10
    assert Limit.set(still_db, "b", rate=3, per=60).burst == 1


def test_an_explanation_names_the_limit_and_its_holders(slots: MakeBench) -> None:
    b = slots(1)
    other = TaskQueue.create(b.db, "other", limits=[API])
    other.put(b.db, "x")
    holder = other.take(b.db, 0, session=b.session)
    assert holder is not None
    waits = b.put("y")

    found = b.queue.explain(b.db, waits)

    assert [(one.name, one.slots, one.used) for one in found.reached] == [(API, 1, 1)]
    assert [(one.task, one.queue, one.session) for one in found.reached[0].holders] == [
        (holder.id, "other", b.session.id.hex())
    ]
    assert Why.LIMIT_REACHED in [reason.why for reason in found.reasons]
    assert holder.id in next(r.text for r in found.reasons if r.why == Why.LIMIT_REACHED)
    assert b.queue.explain(b.db, b.put("z")).reached == found.reached


def test_an_explanation_tells_when_the_next_token_comes(rate: MakeBench) -> None:
    b = rate(1, 10, 1)
    assert starts(b) == 1

    found = b.queue.explain(b.db, b.put("x"))

    reason = next(reason for reason in found.reasons if reason.why == Why.LIMIT_REACHED)
    assert 9 < reason.at - b.clock.now() <= 10


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"slots": 0},
        {"slots": limits.SLOTS_MAX + 1},
        {"slots": 1, "per": 1},
        {"slots": 1, "burst": 1},
        {"rate": 1},
        {"rate": 0, "per": 1},
        {"rate": 1, "per": 0},
        {"rate": 10**9, "per": 1},
        {"rate": 1, "per": 1, "burst": 0},
        {"rate": 1.5, "per": 1},
    ],
    ids=repr,
)
def test_numbers_that_make_no_limit_are_refused(still_db: Database, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Limit.set(still_db, API, **given)
    with pytest.raises(LimitNotFound):
        Limit.open(still_db, API)


def test_a_snapshot_is_no_transaction_of_a_limit(slots: MakeBench) -> None:
    snapshot: Any = slots(1).db.create_transaction().snapshot
    calls: list[Callable[[], Any]] = [
        lambda: Limit.open(snapshot, API),
        lambda: Limit.list(snapshot),
        lambda: Limit.set(snapshot, API, slots=2),
        lambda: Limit.delete(snapshot, API),
    ]
    for call in calls:
        with pytest.raises(fdbqueue.FdbQueueError):
            call()


def test_slots_do_not_become_a_rate(slots: MakeBench) -> None:
    b = slots(1)
    Limit.set(b.db, CALLS, rate=1, per=1)
    with pytest.raises(InvalidArgument, match="has slots"):
        Limit.set(b.db, API, rate=1, per=1)
    with pytest.raises(InvalidArgument, match="has a rate"):
        Limit.set(b.db, CALLS, slots=1)


@pytest.mark.parametrize("names", ["api", ["none"], [""], [1], ["a"] * 1001, list("abcdefghi")], ids=repr)
def test_a_queue_needs_limits_that_exist(still_db: Database, names: Any) -> None:
    with pytest.raises((InvalidArgument, LimitNotFound, fdbqueue.errors.TooMuchForOneTransaction)):
        TaskQueue.create(still_db, "q", limits=names)
    assert [*fdbqueue.list_queues(still_db)] == []


def test_a_queue_tells_its_limits(slots: MakeBench) -> None:
    assert slots(1).queue.options["limits"] == [API]


def test_a_task_with_a_damaged_record_gives_its_slot_back(slots: MakeBench) -> None:
    b = slots(1)
    b.put(1)
    b.put(2)
    task = b.take()
    b.db.set(b.queue._shape.keys.task(id_bytes(task.id)), b"damaged")

    b.queue.release_all(b.db)

    assert b.taken_data() == [2]
    assert used(b.db) == 1
    assert sound(b.db)


def test_a_task_that_no_process_can_decode_gives_its_slot_back(slots: MakeBench) -> None:
    b = slots(1)
    id_ = b.put("x")
    key = b.queue._shape.keys.task(id_bytes(id_))
    record = record_of(b.db[key])
    broken = record_to_bytes(replace(record, payload=b"{"))
    b.db.set(key, broken)
    b.db.set(b.queue._shape.discipline.filed(record), broken)

    assert b.take() is None

    assert b.state(id_) == "!"
    assert used(b.db) == 0


NOW_NS = 10**18
RULE = Rule(rate=1, per_us=1_000_000, burst=2 * limits.CELL_TOKENS_MIN)
AHEAD_NS = 10**9
"""Less than the clocks of two processes may differ by."""


def bucket(*full_in_ns: int) -> Bucket:
    return Bucket(RULE, [NOW_NS + span_ns for span_ns in full_in_ns], NOW_NS)


def test_a_cell_of_a_clock_that_is_ahead_costs_no_other_cell() -> None:
    """By this clock its next token comes in more than a whole burst."""
    empty = bucket(0, 0)
    full_ns = [room * empty.token_ns for room in empty.rooms]
    found = bucket(full_ns[0] + AHEAD_NS, full_ns[1] - empty.token_ns)
    assert (found.tokens, found.all_tokens()) == ([0, 1], 1)
    assert found.taken(1, 0) == {1: NOW_NS + full_ns[1]}
    assert found.taken(2, 0) is None


def test_a_time_of_a_wrong_clock_counts_as_none() -> None:
    empty = bucket(0, 0)
    beyond_ns = empty.rooms[0] * empty.token_ns + round(limits.CLOCK_SKEW_S * 10**9) + 1
    assert bucket(beyond_ns, 0).tokens == empty.tokens
    assert bucket(beyond_ns - 1, 0).tokens == [0, empty.rooms[1]]


def test_the_next_token_is_that_of_the_first_cell_to_get_one() -> None:
    empty = bucket(0, 0)
    full_ns = [room * empty.token_ns for room in empty.rooms]
    found = bucket(full_ns[0], full_ns[1] - empty.token_ns // 2)
    assert found.next_us() == -(-(NOW_NS + empty.token_ns // 2) // 1_000)
    assert bucket(0, full_ns[1]).next_us() is None


MORE = {"slots": 57, "starts": 58, "named slots": 96, "named starts": 98}
"""Calls above the engine more than without a limit, as measured with Python 3.11."""


@pytest.mark.parametrize("kind", sorted(MORE))
def test_a_take_under_a_limit_makes_few_calls_more(kind: str) -> None:
    is_named, name = kind.startswith("named "), kind.removeprefix("named ")
    with fdbqueue.open("memory:") as db:
        Limit.set(db, "slots", slots=1_000)
        Limit.set(db, "starts", rate=1_000_000, per=1, burst=100_000)
        queue = TaskQueue.create(db, "q", **{"task_limits" if is_named else "limits": [name]})
        queue.put_many(db, range(RUNS + WARM_UP), limits=[name] if is_named else None)
        taken: list[Task | None] = []
        seen = [calls_of(lambda: taken.append(queue.take(db, 0)))[0] for _ in range(RUNS + WARM_UP)]
    assert None not in taken
    assert median(seen[WARM_UP:]) <= (COUNTED["take"] + MORE[kind]) * ROOM
