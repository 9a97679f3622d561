"""The end of a session that is refused or fails, and the first takes of two threads."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions import keeper as keeper_module
from fdbqueue.core.sessions import session as owning
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.keeper import Keeper
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.embedded import FDBError
from tests.support import PATIENCE_S, TIMED_OUT, replace_method
from tests.tasks.support import Bench, keeper

MakeBench = Callable[..., Bench]
KEYS = RootKeys(DEFAULT_ROOT)


def give_up(*_: object) -> None:
    raise FDBError(TIMED_OUT)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "1"])
def test_a_refused_end_leaves_the_session_alive(bench: MakeBench, timeout_s: Any) -> None:
    b = bench()
    session = Session(b.db, ttr=10)
    with pytest.raises(InvalidArgument, match="timeout_s"):
        session.end_within(timeout_s)
    b.clock.advance(9)
    b.sweep()
    b.clock.advance(9)
    end_the_dead(Database(b.db.engine, b.clock), KEYS)
    run(b.db, lambda tr: session.ask(tr)())
    assert not session.lost


def test_a_close_goes_on_behind_a_session_it_cannot_end(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    process = Database(b.db.engine, b.clock)
    sessions = [Session(process) for _ in range(3)]

    replace_method(monkeypatch, sessions[0], "end_within", give_up)
    process.close()
    assert [b.db[KEYS.session(session.id)] is None for session in sessions] == [False, True, True]


def test_two_first_takes_at_once_open_one_session(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two sessions, no thread could ack a task of the other."""
    b = bench()
    own, came, found = own_session_of(b.db, KEYS), threading.Event(), list[Session]()
    second = threading.Thread(target=lambda: found.append(own.get()))
    lock = own._opening

    def come() -> None:
        if threading.current_thread() is second:
            came.set()

    class Noted:
        def __enter__(self) -> None:
            come()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def open_late(*arguments: Any, **options: Any) -> Session:
        come()
        if not second.ident:
            second.start()
            assert came.wait(PATIENCE_S)
        return Session(*arguments, **options)

    monkeypatch.setattr(own, "_opening", Noted())
    monkeypatch.setattr(owning, "Session", open_late)
    first = own.get()
    second.join(PATIENCE_S)
    assert found == [first]


class Noted:
    name = "a noted chore"

    def __init__(self) -> None:
        self.done = 0

    def do(self, _: object) -> None:
        self.done += 1


class Slow:
    """A queue that the database is too slow for."""

    name = "slow"

    def guard(self, _: object) -> Callable[[], None]:
        return lambda: None

    def ask_next_due(self, _: object) -> Callable[[], int]:
        return lambda: 0

    def tidy(self, _: object) -> bool:
        raise FDBError(TIMED_OUT)


def test_a_slow_queue_keeps_no_dead_session(bench: MakeBench) -> None:
    b, slow, chore = bench(), Slow(), Noted()
    b.put(1)
    b.queue.take(b.db, 0, session=Session(b.db, ttr=5))
    b.clock.advance(6)
    other = Keeper(Database(b.db.engine, b.clock), KEYS)
    other._chores = [chore]
    other.look_after(slow)
    with pytest.raises(FDBError):
        other.tick()
    assert (b.counts("ready", "taken"), chore.done) == ((1, 0), 1)


def test_an_end_that_fails_stops_no_chore(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    b, chore = bench(), Noted()
    keeper(b.db)._chores = [chore]
    monkeypatch.setattr(keeper_module, "end_the_dead", give_up)
    with pytest.raises(FDBError):
        keeper(b.db).tick()
    assert chore.done == 1


def test_a_heartbeat_without_an_answer_stops_no_other(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    away, own = Session(b.db, ttr=10), Session(b.db, ttr=10)
    replace_method(monkeypatch, away, "beat_if_due", give_up)
    b.clock.advance(6)
    with pytest.raises(FDBError):
        keeper(b.db).tick()
    b.clock.advance(6)
    end_the_dead(Database(b.db.engine, b.clock), KEYS)
    run(b.db, lambda tr: own.ask(tr)())


def test_a_keeper_sweeps_more_queues_than_one_look_reads(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "QUEUES_PER_TRANSACTION", 1)
    b = bench("fifottl")
    queues = [b.queue, *(TaskQueue.create(b.db, name, "fifottl") for name in ("second", "third"))]
    for queue in queues:
        queue.put(b.db, 1, delay=1)
    b.clock.advance(2)
    b.sweep()
    assert [queue.statistics(b.db)["tasks"]["ready"] for queue in queues] == [1, 1, 1]


def test_a_drop_by_another_process_ends_no_sweep_of_others(bench: MakeBench) -> None:
    b = bench("fifottl")
    b.put(1, delay=3)
    dropped, other = TaskQueue.create(b.db, "dropped", "fifottl"), Database(b.db.engine, b.clock)
    assert dropped.take(b.db, 0) is None
    TaskQueue.open(other, "dropped").drop(other)
    b.sweep()
    b.clock.advance(4)
    b.sweep()
    assert b.counts("ready", "delayed") == (1, 0)


def test_a_heartbeat_mends_a_damaged_record(bench: MakeBench) -> None:
    """Else the end of the session would not know its name, and would leave it."""
    b = bench()
    session = Session(b.db, name="worker", ttr=10)
    b.db[KEYS.session(session.id)] = b"damaged"
    session.beat()
    session.end()
    assert b.db[KEYS.session_named("worker")] is None
