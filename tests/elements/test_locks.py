"""Locks: tokens, age, purge (elements.md 6), and calls that happen once whatever becomes of their commits."""

from collections.abc import Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    DamagedElement,
    InvalidArgument,
    LockLost,
    TooMuchForOneTransaction,
)
from fdbqueue.embedded import FDBError
from tests.elements.support import element_queue, filled
from tests.queue_support import faulty
from tests.support import NOT_COMMITTED, ManualClock, begin, commit_code


@pytest.fixture
def clocked(db: Database, clock: ManualClock) -> Iterator[Database]:
    """The engine under test, on a clock set by hand."""
    with Database(db.engine, clock) as database:
        yield database


@pytest.fixture
def q(space: Subspace) -> ElementQueue:
    return element_queue(space)


# -- tokens ---------------------------------------------------------------------------------------------


def test_a_late_effect_fails_with_its_transaction(
    clocked: Database, clock: ManualClock, space: Subspace, q: ElementQueue
) -> None:
    effect = space.pack(("effect",))
    (name,) = filled(clocked, q, 1)
    token = q.acquire(clocked, name)
    clock.advance(601)
    q.purge(clocked)
    q.lock(clocked, name)

    @transactional
    def work(tr: Any) -> None:
        tr[effect] = b"done"
        q.remove(tr, name, token=token)

    with pytest.raises(LockLost):
        work(clocked)
    assert clocked[effect] is None


@pytest.mark.parametrize("token", ["", "zz", 5, b"\x00", "00" * 12])
def test_a_value_that_is_no_token_opens_nothing(db: Database, q: ElementQueue, token: Any) -> None:
    (name,) = filled(db, q, 1)
    q.lock(db, name)
    for verb in (q.get, q.remove, q.unlock):
        with pytest.raises((InvalidArgument, LockLost)):
            verb(db, name, token=token)
    assert q.count(db) == 1


# -- age and purge --------------------------------------------------------------------------------------


def test_a_touch_by_a_slow_clock_shortens_no_lock(
    clocked: Database, clock: ManualClock, q: ElementQueue
) -> None:
    (name,) = filled(clocked, q, 1)
    q.lock(clocked, name)
    clock.advance(-50)
    q.touch(clocked, name)
    clock.advance(110)
    q.purge(clocked, maxlock=60)
    assert not q.lock(clocked, name), "sixty seconds are not more than sixty seconds"


def test_purge_goes_over_many_locks_in_bounded_transactions(
    clocked: Database, clock: ManualClock, q: ElementQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 4)
    names = filled(clocked, q, 11)
    for name in names[:10]:
        q.lock(clocked, name)
    clock.advance(601)
    q.touch(clocked, names[5])
    tr = clocked.create_transaction()
    with pytest.raises(TooMuchForOneTransaction):
        q.purge(tr)
    assert not q.lock(tr, names[0]), "all or nothing"
    q.purge(clocked)
    assert [q.lock(clocked, name) for name in names] == [name != names[5] for name in names]


def test_purge_goes_on_behind_a_batch_of_young_locks(
    clocked: Database, clock: ManualClock, q: ElementQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 2)
    names = filled(clocked, q, 5)
    for name in names:
        q.lock(clocked, name)
    clock.advance(601)
    for name in names[:3]:
        q.touch(clocked, name)
    q.purge(clocked)
    assert [q.lock(clocked, name) for name in names] == [False] * 3 + [True] * 2


def test_a_touch_revives_no_lock_that_ends_beside_it(db: Database, q: ElementQueue) -> None:
    (name,) = filled(db, q, 1)
    q.lock(db, name)
    tr = begin(db)
    q.touch(tr, name)
    q.unlock(db, name)
    assert commit_code(tr) == NOT_COMMITTED
    assert q.lock(db, name)


# -- damage ---------------------------------------------------------------------------------------------


def damaged(db: Database, q: ElementQueue) -> str:
    (name,) = filled(db, q, 1)
    db[q.store.keys.payload(name, 0)] = b"\xc1"
    return name


def test_a_transaction_sets_a_damaged_element_aside(db: Database, q: ElementQueue) -> None:
    name = damaged(db, q)
    tr = db.create_transaction()
    with pytest.raises(DamagedElement):
        q.dequeue(tr, name)
    tr.commit().wait()
    assert (q.count(db), q.unreadable(db)) == (0, 1)


def test_two_callers_set_a_damaged_element_aside_once(
    db: Database, q: ElementQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have met it before the first one moves it."""
    name, set_aside = damaged(db, q), q.store.set_aside

    def late(tr: Any, name: str) -> None:
        monkeypatch.undo()
        with pytest.raises(DamagedElement):
            q.dequeue(db, name)
        set_aside(tr, name)

    monkeypatch.setattr(q.store, "set_aside", late)
    with pytest.raises(DamagedElement):
        q.dequeue(db, name)
    assert (q.count(db), q.unreadable(db)) == (0, 1)


def test_a_snapshot_moves_no_damaged_element(db: Database, q: ElementQueue) -> None:
    name = damaged(db, q)
    q.lock(db, name)
    snapshot: Any = db.create_transaction().snapshot
    with pytest.raises(DamagedElement):
        q.get(snapshot, name)
    assert (q.count(db), q.unreadable(db)) == (1, 0)


# -- once -----------------------------------------------------------------------------------------------


def test_a_call_costs_the_same_in_a_long_queue() -> None:
    def cost(length: int) -> list[tuple[int, int]]:
        clock = ManualClock()
        with fdbqueue.open("memory:", runtime=clock) as db:
            counted, engine = faulty(db, FDBError, clock)
            q = element_queue(Subspace(("long",)), rndhex=1)
            names = filled(counted, q, length)
            found = []
            for call in (
                lambda: q.add(counted, {"body": "x"}),
                lambda: q.lock(counted, names[0]),
                lambda: q.touch(counted, names[0]),
                lambda: q.get(counted, names[0]),
                lambda: q.remove(counted, names[0]),
                lambda: q.dequeue(counted, names[1]),
                lambda: q.count(counted),
                lambda: q.first(counted),
                lambda: q.purge(counted),
            ):
                engine.read_most = engine.written_most = engine.read = engine.written = 0
                clock.advance(1)
                call()
                found.append((engine.read_most, engine.written_most))
            return found

    assert cost(20) == cost(400)
    assert max(max(read, written) for read, written in cost(20)) <= 20
