"""A call ends overdue sessions before it answers empty, busy or full (docs/tasks.md)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import fdbqueue
import fdbqueue.core.errors
from fdbqueue import Database, PersistentQueue, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueBusy, QueueFull
from fdbqueue.core.line.taking import Takes
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Thread, Waitable
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions import ending
from fdbqueue.core.sessions import keeper as keeper_module
from fdbqueue.core.sessions.ending import Overdue, end_the_dead
from fdbqueue.core.sessions.keeper import Keeper
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.calls import Swept
from tests.support import TIMED_OUT, IdleThread
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock
from tests.tasks.test_lasting_threads import fail_with

KEYS = RootKeys(DEFAULT_ROOT)


def other_process(b: Bench) -> Database:
    """A process on the same database, which keeps no session alive."""
    return Database(b.db.engine, b.clock)


def dead_session(b: Bench, queue: TaskQueue | None = None) -> None:
    """A task in the hands of a session that is overdue: its process renews it no more."""
    queue = queue or b.queue
    queue.put(b.db, "held")
    queue.take(b.db, 0, session=Session(b.db, ttr=5))
    b.clock.advance(6)


@pytest.mark.parametrize("timeout", [-1, 0, 2])
def test_the_first_take_finds_the_tasks_of_the_dead(bench: MakeBench, timeout: float) -> None:
    b = bench()
    dead_session(b)
    task = b.queue.take(other_process(b), timeout)
    assert task.data == "held"


def test_a_take_waits_no_longer_when_its_session_dies(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with another session, for the rest of its time."""
    b, wait_any, first = bench(), StillClock.wait_any, iter([True])

    def dies(self: StillClock, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        if not next(first, False):
            return wait_any(self, futures, timeout_s)
        self.advance(6)
        own_session_of(b.db, KEYS).get().end()
        return True

    monkeypatch.setattr(StillClock, "wait_any", dies)
    began = b.clock.now()
    assert b.queue.take(b.db, 10) is None
    assert b.clock.now() - began == pytest.approx(10, abs=0.1)


def test_a_take_in_a_transaction_answers_by_stored_state(bench: MakeBench) -> None:
    b = bench()
    dead_session(b)
    other = other_process(b)
    session = Session(other)
    assert run(other, lambda tr: b.queue.take(tr, session=session)) is None
    assert b.counts("taken") == (1,)


def test_a_take_that_finds_a_task_looks_for_no_overdue_session(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    monkeypatch.setattr(Keeper, "ended_overdue", lambda *_: pytest.fail("a needless round trip"))
    b.put("ready")
    assert b.take() is not None


def test_one_take_of_no_patience_ends_one_batch(bench: MakeBench, set_limits: SetLimits) -> None:
    b = bench()
    set_limits(DEAD_SESSIONS_MAX=2)
    elsewhere = TaskQueue.create(b.db, "elsewhere")
    for queue in (elsewhere, elsewhere, b.queue):
        dead_session(b, queue)
    other = other_process(b)
    assert b.queue.take(other, 0) is None
    assert b.queue.take(other, 0) is not None


def test_a_task_released_by_another_process_is_found(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the empty attempt and the look at the sessions another process ends the dead one."""
    b = bench()
    dead_session(b)
    take = Takes.take

    def take_too_early(takes: Takes, *arguments: Any) -> Any:
        monkeypatch.setattr(Takes, "take", take)
        found = take(takes, *arguments)
        end_the_dead(b.db, KEYS)
        return found

    monkeypatch.setattr(Takes, "take", take_too_early)
    assert b.queue.take(other_process(b), 0) is not None


def test_a_process_that_stood_still_does_not_end_its_own_session(bench: MakeBench) -> None:
    b = bench()
    b.put("mine")
    own = b.queue.take(b.db, 0)
    b.clock.advance(limits.SESSION_TTR_S + 1)
    assert b.queue.take(b.db, 0) is None
    assert b.queue.ack(b.db, own).data == "mine"


def test_a_lost_session_delays_no_heartbeat_of_another(bench: MakeBench) -> None:
    """After a standstill, the same round would end a session that it has not renewed."""
    b = bench()
    lost, own = Session(b.db, ttr=5), Session(b.db, ttr=10)
    b.clock.advance(6)
    end_the_dead(other_process(b), KEYS)
    b.clock.advance(6)
    b.sweep()
    run(b.db, lambda tr: own.ask(tr)())
    assert lost.lost


def test_the_keeper_renews_its_sessions_among_many_dead_ones(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of each batch takes time. Another process would end a session that is not renewed meanwhile."""
    monkeypatch.setattr(limits, "DEAD_SESSIONS_MAX", 1)
    b = bench()
    own, other = Session(b.db, ttr=12), other_process(b)
    for _ in range(4):
        Session(other, ttr=1)

    def end_slowly(database: Database, keys: RootKeys, after: bytes | None) -> bytes | None:
        b.clock.advance(5)
        return end_the_dead(database, keys, after)

    monkeypatch.setattr(keeper_module, "end_the_dead", end_slowly)
    b.clock.advance(2)
    b.sweep()
    end_the_dead(other, KEYS)
    run(b.db, lambda tr: own.ask(tr)())


def test_the_keeper_renews_its_sessions_in_a_long_sweep(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch of due tasks takes time. A session that is not renewed meanwhile would end."""
    monkeypatch.setattr(limits, "DUE_BATCH", 1)
    b = bench("fifottl")
    own, other = Session(b.db, ttr=12), other_process(b)
    for _ in range(4):
        b.put(delay=1)
    tidy = Swept.tidy

    def tidy_slowly(swept: Swept, tr: Transaction) -> bool:
        b.clock.advance(4)
        return tidy(swept, tr)

    monkeypatch.setattr(Swept, "tidy", tidy_slowly)
    b.clock.advance(2)
    b.sweep()
    end_the_dead(other, KEYS)
    run(b.db, lambda tr: own.ask(tr)())


def test_a_drop_is_not_refused_for_the_dead(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(DEAD_SESSIONS_MAX=2)
    b = bench()
    for _ in range(5):
        dead_session(b)
        b.put("untouched")
    assert b.queue.busy(b.db.create_transaction()) == "tasks are taken"
    with pytest.raises(QueueBusy):
        run(b.db, b.queue.drop)
    b.queue.drop(other_process(b))
    assert fdbqueue.list_queues(b.db) == []


def test_busy_gives_no_reason_for_the_dead(bench: MakeBench) -> None:
    b = bench()
    dead_session(b)
    assert b.queue.busy(other_process(b)) == ""


def test_a_live_session_still_refuses_a_drop(bench: MakeBench) -> None:
    b = bench()
    dead_session(b)
    b.put("held by a live session")
    b.queue.take_many(b.db, 9, session=b.session)
    with pytest.raises(QueueBusy):
        b.queue.drop(other_process(b))


@pytest.mark.parametrize("timeout", [0, 2])
def test_a_put_ends_overdue_sessions_before_it_is_refused(bench: MakeBench, timeout: float) -> None:
    b = bench("limfifottl", capacity=1)
    dead_session(b)
    with pytest.raises(QueueFull):
        b.queue.put(other_process(b), "more", timeout=timeout)
    assert b.counts("ready", "taken") == (1, 0)


def test_a_failing_end_of_the_dead_fails_no_take(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench()
    dead_session(b)

    refuse = fail_with(fdbqueue.errors.UnknownKind(kind="of tomorrow", known="fifo"))
    monkeypatch.setattr("fdbqueue.core.sessions.ending._enders", lambda: [refuse])
    assert b.queue.take(other_process(b), 0) is None
    assert "of tomorrow" in caplog.text


def overdue_in(db: Database) -> list[Overdue]:
    return run(db, lambda tr: ending.ask_overdue(tr, KEYS, db.runtime.now_us())()).dead


def three_dead(b: Bench, db: Database) -> list[Overdue]:
    """Each holds a task."""
    for number in range(3):
        b.put(number)
        b.queue.take(b.db, 0, session=Session(b.db, ttr=5))
    b.clock.advance(6)
    return overdue_in(db)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_dead_sessions_end_on_both_sides_of_a_failing_one(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Their begun ends go on, though the clock has gone on since. The failing one is put off."""
    b = bench()
    other = other_process(b)
    overdue = three_dead(b, other)

    def refuse(_: Database, __: RootKeys, ended: Sequence[bytes], ___: bool) -> Sequence[bytes]:
        b.clock.advance(1)
        if overdue[place].session in ended:
            raise fdbqueue.errors.UnknownKind(kind="of tomorrow", known="fifo")
        return ()

    found = ending._enders()
    monkeypatch.setattr("fdbqueue.core.sessions.ending._enders", lambda: [refuse, *found])
    assert ending.end_overdue(other, KEYS, overdue)
    assert b.counts("taken", "ready") == (1, 2)
    assert overdue_in(other) == []


def test_a_session_that_still_holds_a_task_keeps_no_other(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep would meet the others again and again."""
    b = bench()
    other = other_process(b)
    overdue = three_dead(b, other)
    monkeypatch.setattr("fdbqueue.core.sessions.ending._enders", lambda: [lambda *_: [overdue[1].session]])
    ending.end_overdue(other, KEYS, overdue)
    assert overdue_in(other) == []
    b.clock.advance(limits.SESSION_TTR_S)
    assert [dead.session for dead in overdue_in(other)] == [overdue[1].session]


def test_a_session_whose_end_cannot_begin_is_put_off(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    dead_session(b)
    other = other_process(b)
    with monkeypatch.context() as patch:
        patch.setattr(ending, "_begin_end", lambda *_: 1 // 0)
        assert not ending.end_overdue(other, KEYS, overdue_in(other))
    assert overdue_in(other) == []
    b.clock.advance(limits.SESSION_TTR_S)
    end_the_dead(other, KEYS)
    assert b.counts("ready") == (1,)


def test_a_database_that_is_away_puts_off_no_end(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error tells nothing about the sessions: the next sweep ends them."""
    b = bench()
    dead_session(b)

    with monkeypatch.context() as patch:
        patch.setattr(ending, "_begin_ends", fail_with(FDBError(TIMED_OUT)))
        with pytest.raises(FDBError):
            end_the_dead(other_process(b), KEYS)
    end_the_dead(other_process(b), KEYS)
    assert b.counts("ready", "taken") == (1, 0)


def test_a_sweep_goes_on_behind_damaged_entries(bench: MakeBench, set_limits: SetLimits) -> None:
    """They fill a batch, and nothing clears them."""
    set_limits(DEAD_SESSIONS_MAX=2)
    b = bench()
    for junk in (b"\x01", b"\x02"):
        b.db[KEYS.beats_due.start + junk] = b""
    dead_session(b)
    Keeper(other_process(b), KEYS).tick()
    assert b.counts("ready") == (1,)


def test_a_sweep_clears_the_entry_of_a_damaged_heartbeat(bench: MakeBench) -> None:
    """The heartbeat that was written anew has an entry of its own."""
    b = bench()
    session = Session(b.db, ttr=10)
    b.db[KEYS.heartbeat(session.id)] = b"damaged"
    b.clock.advance(5)
    session.beat()
    b.clock.advance(6)
    end_the_dead(other_process(b), KEYS)
    assert overdue_in(b.db) == []
    session.beat()
    assert not session.lost


def test_an_overdue_session_shares_no_sweeps(bench: MakeBench) -> None:
    b = bench()
    dead_session(b)
    now_us = b.db.runtime.now_us()
    assert run(b.db, lambda tr: ending.count_others(tr, KEYS, [b.session.id], now_us)) == 0


@pytest.mark.parametrize("count", [1, 7])
def test_a_queue_with_items_of_dead_proxies_is_not_empty(
    bench: MakeBench, set_limits: SetLimits, count: int
) -> None:
    set_limits(DEAD_SESSIONS_MAX=2)
    b = bench()
    for number in range(count):
        b.put(number)
        b.queue.take(b.db, 0, session=Session(b.db, ttr=5))
    b.clock.advance(6)
    q = PersistentQueue(other_process(b), b.queue.name)
    got = []
    while not q.empty():
        got.append(q.get_nowait())
    assert sorted(got) == list(range(count))


class Spawned(StillClock):
    """Notes the names of the threads that are started."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        del target
        self.names.append(name)
        return IdleThread()


OPENINGS: dict[str, Callable[[Database], Any]] = {
    "created": lambda db: TaskQueue.create(db, "new"),
    "opened": lambda db: TaskQueue.open(db, "bench"),
    "persistent": lambda db: PersistentQueue(db, "bench"),
}


@pytest.mark.parametrize("how", OPENINGS)
def test_the_keeper_starts_where_a_queue_is_opened(bench: MakeBench, how: str) -> None:
    clock = Spawned()
    other = Database(bench().db.engine, clock)
    OPENINGS[how](other)
    assert clock.names == ["fdbqueue-keeper"]


@pytest.mark.parametrize("begun", [False, True], ids=["whole", "begun by a dead process"])
def test_a_lost_task_names_the_process_that_held_it(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    """Its session is gone when the task comes back, and a third process may finish the end."""
    b = parted()
    session, keys = Session(b.db, ttr=5, root=b.root), RootKeys(b.root)
    b.put_each([1, 2])
    ids = [b.queue.take(b.db, 0, session=session).id for _ in range(2)]
    process = f"{b.clock.host_name()}:{b.clock.process_id()}"
    b.clock.advance(6)
    with Database(b.db.engine, b.clock) as other:
        if begun:
            with monkeypatch.context() as patch:
                patch.setattr(ending, "_finish", lambda *_, **__: None)
                end_the_dead(other, keys)
            b.clock.advance(1)
        end_the_dead(other, keys)
    assert [b.queue.failures(b.db, id_)[-1].worker for id_ in ids] == [process, process]
    assert f"{process} has died, and held 2 of the tasks" in caplog.text
