"""The end of a session that is refused or fails, and the first takes of two threads."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Database, Session
from fdbqueue.database import run
from fdbqueue.embedded import FDBError
from fdbqueue.errors import InvalidArgument
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.sessions import own as owning
from fdbqueue.sessions.ending import end_the_dead
from fdbqueue.sessions.own import own_session_of
from tests.support import PATIENCE_S, TIMED_OUT
from tests.tasks.support import Bench

MakeBench = Callable[..., Bench]
KEYS = RootKeys(DEFAULT_ROOT)


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

    def give_up(_: object) -> None:
        raise FDBError(TIMED_OUT)

    monkeypatch.setattr(sessions[0], "end_within", give_up)
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
