"""Limits that count each key apart: each key that tasks name has slots, or tokens, of its own."""

from typing import Any

import pytest

from fdbqueue import Database, DeadLetters, Limit, TaskQueue, Why
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, LimitNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.limits.rule import LimitKeys
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock
from tests.tasks.test_limits import sound

TENANT, CALLS = "tenant", "calls"
ORDERED = ["fifo", "fifottl", "limfifottl"]


@pytest.fixture
def keyed(still_db: Database, clock: StillClock) -> MakeBench:
    """A bench of a queue with tasks that name limits with keys: `keyed("fifo", 2)` has two slots of each."""

    def make(kind: str = "fifottl", slots: int = 1, **options: Any) -> Bench:
        Limit.set(still_db, TENANT, slots=slots, per_key=True)
        Limit.set(still_db, CALLS, rate=1, per=10, burst=2, per_key=True)
        return Bench(still_db, clock, kind, task_limits=[TENANT, CALLS], **options)

    return make


def swept(b: Bench) -> None:
    for _ in range(3):
        b.sweep()


def rows(db: Database) -> list[bytes]:
    """The keys of the limits' keys that are stored."""
    root = RootKeys(DEFAULT_ROOT).prefix
    under = [
        part
        for keys in (LimitKeys(root, TENANT), LimitKeys(root, CALLS))
        for part in (keys.counts, keys.of_keys, keys.dues, keys.overs)
    ]
    return [bytes(row.key) for part in under for row in db.get_range(part.start, part.stop)]


def settle_once(b: Bench) -> None:
    """Do the part of one sweep that opens lanes of keys."""
    of_queue = b.queue._shape.limits
    assert of_queue is not None
    run(b.db, lambda tr: of_queue.ask_settle(tr, b.db.runtime.now_us())())


@pytest.mark.parametrize("kind", ORDERED)
def test_each_key_has_slots_of_its_own(keyed: MakeBench, kind: str) -> None:
    b = keyed(kind, 2)
    for number in range(9):
        b.put(number, limits={TENANT: number % 3})

    taken = b.queue.take_many(b.db, 9, session=b.session)

    assert [task.data for task in taken] == [0, 1, 2, 3, 4, 5]
    assert [dict(task.limits) for task in taken[:2]] == [{TENANT: 0}, {TENANT: 1}]
    assert b.take() is None
    b.queue.ack(b.db, taken[1])
    assert b.taken_data() == [7]
    assert sound(b.db)


def test_a_task_with_a_key_takes_one_slot_of_its_queue(still_db: Database, keyed: MakeBench) -> None:
    """The bounds of a transaction count it as several starts; a take once counted these as slots, too."""
    Limit.set(still_db, "all", slots=2)
    b = keyed(limits=["all"])
    for number, names in enumerate([{TENANT: "a"}, {}, {}]):
        b.put(number, limits=names)
    assert [task.data for task in b.queue.take_many(b.db, 9, session=b.session)] == [0, 1]


def test_keys_of_other_types_are_other_keys(keyed: MakeBench) -> None:
    b = keyed()
    keys = (1, "1", b"1", True, ("a", 1), None)
    for key in keys:
        b.put(repr(key), limits={TENANT: key})
        b.put("late", limits={TENANT: key})

    assert b.taken_data() == [repr(key) for key in keys]


def test_a_take_passes_all_keys_over_a_lowered_limit(keyed: MakeBench) -> None:
    """No sweep has parked their lanes yet, so their pointers are before that of the key with room."""
    b = keyed("fifo", 2)
    keys = range(2 * limits.LANE_TASKS_FIRST)
    for number in keys:
        b.put("first", limits={TENANT: number})
    assert len(b.queue.take_many(b.db, len(keys))) == len(keys)
    for number in keys:
        b.put("second", limits={TENANT: number})
    Limit.set(b.db, TENANT, slots=1, per_key=True)
    b.put("room", limits={TENANT: "other"})
    assert b.take().data == "room"


def test_a_limit_that_is_set_anew_knows_no_token_of_its_keys(keyed: MakeBench) -> None:
    """The row of a key with tokens is none of slots: it told an immense number of them in use."""
    b = keyed()
    for number in range(4):
        b.put(number, limits={CALLS: "a"})
    assert b.taken_data() == [0, 1]

    Limit.delete(b.db, CALLS)
    Limit.set(b.db, CALLS, slots=1, per_key=True)
    swept(b)

    assert b.taken_data() == [2]
    assert [(one.key, one.used) for one in Limit.keys(b.db, CALLS)] == [("a", 1)]
    assert sound(b.db)


def test_a_drop_lets_other_queues_go_on(keyed: MakeBench) -> None:
    b = keyed("fifottl", ttr=3)
    other = TaskQueue.create(b.db, "other", task_limits=[TENANT])
    b.put("x", limits={TENANT: "a"})
    b.take()
    b.put("y", limits={TENANT: "a"})
    other.put(b.db, "z", limits={TENANT: "a"})
    b.clock.advance(4)

    b.queue.drop(b.db)
    swept(b)

    assert [task.data for task in other.take_many(b.db, 9)] == ["z"]
    assert sound(b.db)


def test_a_replaced_task_has_the_key_of_the_later_put(keyed: MakeBench) -> None:
    b = keyed()
    b.put("old", unique=1, limits={TENANT: "a"})
    b.put("new", unique=1, on_conflict="replace", limits={TENANT: "b"})
    b.put("next", limits={TENANT: "a"})

    assert b.taken_data() == ["new", "next"]
    assert sound(b.db)


def test_a_redrive_keeps_the_key(keyed: MakeBench) -> None:
    b = keyed()
    other = TaskQueue.create(b.db, "other", task_limits=[TENANT])
    b.queue.bury(b.db, b.put("x", limits={TENANT: "a", CALLS: None}))
    letters = DeadLetters.open(b.db, "bench")
    letters.begin_redrive(b.db, into="other")
    letters.run_redrive(b.db)

    assert [dict(task.limits) for task in other.take_many(b.db, 9)] == [{TENANT: "a"}]


def test_an_explanation_tells_the_key_and_its_holders(keyed: MakeBench) -> None:
    b = keyed()
    for key in ("a", "a", "b"):
        b.put("x", limits={TENANT: key})
    holder, _ = b.take(), b.take()
    [waits] = b.queue.tasks(b.db, "r", 9)

    found = b.queue.explain(b.db, waits)
    [reached] = found.reached
    assert (reached.name, reached.key, reached.used, reached.slots) == (TENANT, "a", 1, 1)
    assert [one.task for one in reached.holders] == [holder.id]
    assert found.reasons[0].why == Why.LIMIT_REACHED
    assert f"no free slot for the key 'a': 1 of 1 are held, by {holder.id}" in found.reasons[0].text


def test_a_listing_of_keys_has_pages(keyed: MakeBench) -> None:
    b = keyed(slots=2)
    for key in range(5):
        b.put("x", limits={TENANT: key})
    b.taken_data()

    first = Limit.keys(b.db, TENANT, limit=3)
    rest = Limit.keys(b.db, TENANT, limit=3, after=first.next)
    assert [(one.key, one.used, one.free) for one in (*first, *rest)] == [(key, 1, 1) for key in range(5)]
    assert rest.next is None
    assert Limit.open_key(b.db, TENANT, 3).holders[0].queue == "bench"
    assert Limit.open_key(b.db, TENANT, "idle").used == 0
    assert (Limit.open(b.db, TENANT).used, Limit.open(b.db, TENANT).per_key) == (5, True)


def test_wrong_keys_are_refused(keyed: MakeBench) -> None:
    b = keyed()
    for named in ({TENANT: "a", CALLS: "b"}, {TENANT: object()}, {"none": "a"}, {TENANT: "x" * 2_000}):
        with pytest.raises(InvalidArgument):
            b.put("x", limits=named)
    with pytest.raises(InvalidArgument, match="per_key"):
        Limit.set(b.db, TENANT, slots=1)
    with pytest.raises(InvalidArgument, match="per_key"):
        Limit.set(b.db, "new", slots=1, per_key="yes")  # type: ignore[arg-type]
    Limit.set(b.db, "whole", slots=1)
    for look in (Limit.keys, lambda db, name: Limit.open_key(db, name, "a")):
        with pytest.raises(InvalidArgument, match="per_key"):
            look(b.db, "whole")
        with pytest.raises(LimitNotFound):
            look(b.db, "none")
    assert b.contents() == []


def test_a_key_of_a_limit_that_counts_none_apart_does_not_matter(keyed: MakeBench) -> None:
    b = keyed()
    Limit.delete(b.db, TENANT)
    Limit.set(b.db, TENANT, slots=1)
    for key in ("a", "b"):
        b.put(key, limits={TENANT: key})
    task = b.take()
    assert b.take() is None

    b.queue.ack(b.db, task)
    assert b.taken_data() == ["b"]
    assert sound(b.db)


def test_a_key_in_more_lanes_than_one_transaction_turns(keyed: MakeBench, set_limits: SetLimits) -> None:
    set_limits(LANES_TURNED=1)
    b = keyed()
    queues = [TaskQueue.create(b.db, f"q{n}", task_limits=[TENANT]) for n in range(4)]
    for queue in queues:
        queue.put(b.db, "x", limits={TENANT: "a"})
    for _ in queues:
        found = [(queue, task) for queue in queues for task in queue.take_many(b.db, 9, session=b.session)]
        [(queue, task)] = found
        swept(b)
        queue.ack(b.db, task)
        swept(b)
    assert rows(b.db) == []


def test_the_last_of_many_parked_lanes_opens(keyed: MakeBench, set_limits: SetLimits) -> None:
    """The key is free, and no other queue takes a task of it."""
    set_limits(LANES_TURNED=1)
    b = keyed()
    b.put("first", limits={TENANT: "a"})
    task = b.take()
    queues = [TaskQueue.create(b.db, f"q{n}", task_limits=[TENANT]) for n in range(4)]
    for queue in queues:
        queue.put(b.db, "x", limits={TENANT: "a"})
        assert queue.take(b.db, 0) is None

    b.queue.ack(b.db, task)
    swept(b)
    assert queues[-1].take(b.db, 0) is not None


def test_a_clock_that_is_behind_leaves_no_key_parked(keyed: MakeBench, set_limits: SetLimits) -> None:
    """By the clock of one process the token of a key has come, and by that of the next one it has not."""
    set_limits(LANES_TURNED=1)
    b = keyed()
    other = TaskQueue.create(b.db, "other", task_limits=[CALLS])
    for queue in (b.queue, b.queue, b.queue, other):
        queue.put(b.db, "x", limits={CALLS: "a"})
    assert len(b.taken_data()) == 2
    b.clock.advance(10)
    settle_once(b)  # opens one lane of the two, and leaves the rest to the next sweep
    b.clock.advance(-5)
    swept(b)

    b.clock.advance(20)
    found = [*b.taken_data(), *other.take_many(b.db, 9, session=b.session)]

    assert len(found) == 2
    assert sound(b.db)


def test_a_put_by_a_clock_that_is_behind_does_not_wait_for_ever(keyed: MakeBench) -> None:
    b = keyed()
    other = TaskQueue.create(b.db, "other", task_limits=[CALLS])
    for _ in range(3):
        b.put("x", limits={CALLS: "a"})
    assert len(b.taken_data()) == 2
    b.clock.advance(10)
    b.sweep()  # opens the lane of the key
    b.clock.advance(-1)
    other.put(b.db, "y", limits={CALLS: "a"})

    b.clock.advance(20)
    swept(b)

    assert other.take(b.db, 0, session=b.session) is not None
    assert sound(b.db)


def test_two_ends_over_a_lowered_limit_conflict(keyed: MakeBench) -> None:
    """Neither of them leaves room by itself. Both together do, and then one lets the next task start."""
    b = keyed("fifo", 2)
    for number in range(3):
        b.put(number, limits={TENANT: "a"})
    tasks = b.queue.take_many(b.db, 2)
    Limit.set(b.db, TENANT, slots=1, per_key=True)
    swept(b)
    ends = [begin(b.db) for _ in tasks]
    for tr, task in zip(ends, tasks, strict=True):
        b.queue.ack(tr, task)
    assert sorted(commit_code(tr) for tr in ends) == [0, NOT_COMMITTED]
