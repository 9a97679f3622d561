"""Corruptions of limits that count each key apart: each is found, and mending ends it."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Flaw, Limit, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.operate.verify.root import miscounted_total
from fdbqueue.tasks.limits.lanes import Lanes
from fdbqueue.tasks.limits.parking import OPEN_STATE as OPEN_STATE
from fdbqueue.tasks.limits.parking import LaneKeys
from fdbqueue.tasks.limits.rule import OPEN, PARKED, Held, LanePlace, LimitKeys, encode_held
from fdbqueue.tasks.limits.state import KeyState, number_bytes
from fdbqueue.tasks.stored.records import id_bytes
from tests.verifying.corruptions import Corruptions, require_found_and_mended, require_one_mending

ROOT = RootKeys(DEFAULT_ROOT).prefix
SLOTS, STARTS = LimitKeys(ROOT, "tenant"), LimitKeys(ROOT, "calls")
A, B = key_bytes("a"), key_bytes("b")
IN_SLOTS = b"\x02\x02"
"""The lane of tasks that name "tenant" with a key."""
STRANGER = LanePlace(1, 0, b"\x01\x01")


def lanes_of(db: Database) -> LaneKeys:
    discipline = TaskQueue.open(db, "q")._shape.discipline
    assert isinstance(discipline, Lanes)
    return discipline.lane_keys


def first(db: Database, under: slice) -> bytes:
    return next(bytes(row.key) for row in db.get_range(under.start, under.stop))


def pointer(db: Database) -> bytes:
    return first(db, lanes_of(db).pointers_of(IN_SLOTS))


def late_head(db: Database) -> None:
    """The state of a lane names a place behind its first task."""
    state = lanes_of(db).state(IN_SLOTS, B)
    db.set(state, OPEN_STATE + b"\x7f" * 24)


def forget_due(db: Database) -> None:
    """A key without a token has a lane, and its row no time at which that opens."""
    TaskQueue.open(db, "q").put(db, 6, limits={"calls": "a"})
    state = KeyState(STARTS, A, None, db.get(STARTS.count(A)))
    db.clear(STARTS.due(state.due_us, A))
    db.set(STARTS.count(A), number_bytes(state.full_ns) + number_bytes(0) + number_bytes(state.over_us))


CORRUPTIONS: Corruptions = {
    "a pointer is missing": (lambda db: db.clear(pointer(db)), {Flaw.STATE}),
    "a pointer is another one's": (lambda db: db.set(pointer(db) + b"x", B), {Flaw.STRAY}),
    "a state is missing": (
        lambda db: db.clear(lanes_of(db).state(IN_SLOTS, B)),
        {Flaw.STATE, Flaw.STRAY},
    ),
    "a state is damaged": (
        lambda db: db.set(lanes_of(db).state(IN_SLOTS, A), b"damaged"),
        {Flaw.VALUE, Flaw.STATE, Flaw.STRAY},
    ),
    "a state names a later task": (late_head, {Flaw.STATE, Flaw.STRAY}),
    "an open row is missing": (lambda db: db.clear(first(db, SLOTS.lanes(B, OPEN))), {Flaw.STATE}),
    "a parked row is missing": (lambda db: db.clear(first(db, SLOTS.lanes(A, PARKED))), {Flaw.STATE}),
    "a row has no lane": (lambda db: db.set(SLOTS.lane(A, OPEN, STRANGER), b""), {Flaw.STRAY}),
    "a holder is missing": (
        lambda db: db.clear(first(db, SLOTS.key_holders(A))),
        {Flaw.STATE, Flaw.COUNTER},
    ),
    "a holder has no task": (
        lambda db: db.set(
            SLOTS.key_holder(A, 1, id_bytes("0" * 31 + "1")), encode_held(Held(16, "q", 0, b"s"))
        ),
        {Flaw.STRAY, Flaw.COUNTER},
    ),
    "a holder is damaged": (
        lambda db: db.set(SLOTS.key_holder(A, 1, id_bytes("0" * 31 + "1")), b"damaged"),
        {Flaw.VALUE, Flaw.COUNTER},
    ),
    "the row counts too many": (lambda db: db.add(SLOTS.count(A), number_bytes(2)), {Flaw.COUNTER}),
    "the row is missing": (lambda db: db.clear(SLOTS.count(A)), {Flaw.COUNTER, Flaw.TIMER}),
    "the total counts too many": (lambda db: db.add(SLOTS.total, number_bytes(2)), {Flaw.COUNTER}),
    "the time of a key is missing": (lambda db: db.clear(first(db, STARTS.overs)), {Flaw.TIMER}),
    "nothing opens a parked lane": (forget_due, {Flaw.TIMER}),
    "a time has no key": (lambda db: db.set(STARTS.due(7, B), b""), {Flaw.TIMER}),
}


@pytest.fixture
def db() -> Any:
    with fdbqueue.open("memory:") as database:
        Limit.set(database, "tenant", slots=1, per_key=True)
        Limit.set(database, "calls", rate=1, per=1e6, burst=1, per_key=True)
        queue = TaskQueue.create(database, "q", task_limits=["calls", "tenant"])
        for data, named in ((1, {"tenant": "a"}), (2, {"calls": "a"})):
            queue.put(database, data, limits=named)
        assert len(queue.take_many(database, 9)) == 2
        queue.put(database, 3, limits={"tenant": "a"})
        queue.put(database, 4, limits={"tenant": "b"})
        queue.put(database, 5, limits={"tenant": "b"})
        yield database


@pytest.mark.parametrize(("corrupt", "flaws"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_found_and_mended(
    db: Database, corrupt: Callable[[Database], Any], flaws: set[Flaw]
) -> None:
    require_found_and_mended(db, corrupt, flaws, 3)
    assert Limit.open(db, "tenant").used == 1
    assert [task.data for task in TaskQueue.open(db, "q").take_many(db, 9)] == [4]


def test_a_lane_under_an_unreadable_limit_waits_for_an_end(db: Database) -> None:
    db.set(SLOTS.row, b"damaged")
    parked = "A parked lane of the key 'a' of 'tenant' could open now, and waits for the end of a task."
    assert parked in [finding.text for finding in verify(db).findings]
    queue = TaskQueue.open(db, "q")
    (running,) = (task for task in queue.tasks(db, "t", 9) if task.data == 1)
    queue.delete(db, running.id)
    assert parked not in [finding.text for finding in verify(db).findings]
    assert [task.data for task in queue.take_many(db, 9)] == [3, 4, 5]


def test_a_lane_that_no_end_opens_is_told_as_such(db: Database) -> None:
    CORRUPTIONS["nothing opens a parked lane"][0](db)
    (finding,) = verify(db).findings
    assert finding.text == "Nothing opens a parked lane of the key 'a' of 'calls': its tasks wait for ever."


def test_two_mendings_of_the_total_conflict(db: Database) -> None:
    """Each adds the difference that it has seen."""
    db.add(SLOTS.total, number_bytes(2))
    found = miscounted_total(db, SLOTS, "")
    assert found is not None
    require_one_mending(db, found)
    assert not verify(db).findings


def test_the_total_of_too_many_keys_is_not_compared(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sum over the keys that one transaction reads is too small."""
    assert len(TaskQueue.open(db, "q").take_many(db, 9)) == 1
    monkeypatch.setattr(limits, "VERIFIED_LIMIT_KEYS_MAX", 1)
    assert Limit.open(db, "tenant").used == 2
    assert not verify(db).findings


def test_a_lane_that_waits_for_a_token_is_sound(db: Database) -> None:
    TaskQueue.open(db, "q").put(db, 6, limits={"calls": "a"})
    assert not verify(db).findings


def test_a_walk_over_the_keys_excuses_their_rows(db: Database) -> None:
    """It is about to look at all of them."""
    for name in ("a row has no lane", "nothing opens a parked lane"):
        CORRUPTIONS[name][0](db)
    flaws = {finding.flaw for finding in verify(db).findings}
    db.set(SLOTS.walk, b"")
    db.set(STARTS.walk, b"")
    assert (flaws, verify(db).findings) == ({Flaw.STRAY, Flaw.TIMER}, ())
