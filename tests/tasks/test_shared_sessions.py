"""Openers of one session name share the session: it ends when the last of them ends or dies."""

import threading

import pytest
from fdb import tuple as layer

from fdbqueue import Database, Session
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, PRESENCE, SESSION, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.keeper import Keeper, Kept
from tests.support import NOT_COMMITTED, PATIENCE_S, begin, commit_code, wait_until
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock

KEYS = RootKeys(DEFAULT_ROOT)
NAME = "worker-7"


def opener(b: Bench, ttr: float = 10) -> Session:
    """In a process of its own."""
    return Session(Database(b.db.engine, b.clock), name=NAME, ttr=ttr)


def rows(b: Bench) -> int:
    """Keys of sessions that are stored: records, names, heartbeats and their entries."""
    return sum(1 for _ in b.db.get_range(SESSION.start(KEYS.prefix), PRESENCE.start(KEYS.prefix)))


def test_a_transaction_from_before_an_opening_conflicts(bench: MakeBench) -> None:
    """It does not see the session, which is not over for that: its retry sees it."""
    b = bench()
    b.put(1)
    early = begin(b.db)
    session = opener(b)
    assert len(b.queue.take_many(early, 1, session=session)) == 1
    assert (commit_code(early), session.lost) == (NOT_COMMITTED, False)


def test_only_a_session_with_a_name_can_have_to_exist(bench: MakeBench) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        Session(bench().db, must_exist=True)


def test_the_rows_of_dead_openers_do_not_gather(bench: MakeBench) -> None:
    b = bench()
    for _ in range(20):
        opener(b)
        b.clock.advance(4)
    of_the_bench, shared, alive = 3, 4, 3
    assert rows(b) <= of_the_bench + shared + alive


def test_openers_beyond_those_that_are_read_keep_the_session(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(OPENERS_READ_MAX=2)
    b = bench()
    openers = [opener(b) for _ in range(4)]
    for session in openers[:3]:
        session.end()
    openers[3].beat()
    assert not openers[3].lost


def test_closing_a_database_leaves_the_session_to_other_openers(bench: MakeBench) -> None:
    b = bench()
    first, second = opener(b), opener(b)
    b.put(1)
    b.queue.take(b.db, 0, session=first)
    first._database.close()
    assert b.counts("taken") == (1,)
    second._database.close()
    assert b.counts("ready") == (1,)


def test_closing_ends_a_session_that_is_being_opened(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored, and its keeper does not know it yet."""
    b = bench()
    before, keep = rows(b), Keeper.keep
    db = Database(b.db.engine, b.clock)
    closing = threading.Thread(target=db.close)

    def keep_while_it_closes(keeper: Keeper, session: Kept) -> None:
        closing.start()
        wait_until(lambda: not closing.is_alive() or is_waited_for())
        keep(keeper, session)

    def is_waited_for() -> bool:
        return db.waiters.left is not None and bool(db.waiters.inside)

    monkeypatch.setattr(Keeper, "keep", keep_while_it_closes)
    Session(db, name=NAME)
    closing.join(PATIENCE_S)
    assert rows(b) == before


def test_an_opener_keeps_the_parts_of_a_newer_release(bench: MakeBench) -> None:
    """They stand behind those of this release, in the record that all openers share."""
    b = bench()
    key = KEYS.session(opener(b).id)
    b.db[key] = layer.pack((*layer.unpack(b.db[key]), "newer", 7))
    opener(b, ttr=60)
    assert layer.unpack(b.db[key])[2:] == (60_000_000, "newer", 7)


def test_a_session_of_an_earlier_release_goes_on(bench: MakeBench, clock: StillClock) -> None:
    """It has no rows of openers."""
    b = bench()
    old = opener(b)
    run(b.db, lambda tr: tr.clear(KEYS.opener(old.id, old._opener)))
    assert opener(b).id == old.id
    old.beat()
    assert not old.lost
    clock.advance(1)
    Keeper(b.db, KEYS).tick()


def test_a_leaving_opener_among_dead_ones_ends_no_session(bench: MakeBench, set_limits: SetLimits) -> None:
    """It reads the first openers only, and one behind them may live."""
    set_limits(OPENERS_READ_MAX=2)
    b = bench()
    _, leaving, last = sorted((opener(b) for _ in range(3)), key=lambda session: session._opener)
    b.clock.advance(5)
    for session in (leaving, last):
        session.beat()
    b.clock.advance(6)
    b.put(1)
    b.queue.take(b.db, 0, session=last)
    leaving.end()
    end_the_dead(b.db, KEYS)
    assert b.counts("ready", "taken") == (0, 1)
    last.beat()
    assert not last.lost


def test_a_session_that_ended_with_a_damaged_record_is_unknown(bench: MakeBench) -> None:
    b = bench()
    session = opener(b)
    b.db[KEYS.session(session.id)] = b"\xff"
    b.clock.advance(11)
    end_the_dead(b.db, KEYS)
    with pytest.raises(UnknownSession):
        Session(b.db, name=NAME, must_exist=True)
    assert opener(b).id == session.id


def test_two_first_openers_at_once_share_one_session(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one opens it between the reads and the commit of the first."""
    b, register, between = bench(), Session._register, list[Session]()

    def register_late(session: Session, tr: Transaction, fresh: bytes) -> tuple[bytes, float]:
        answer = register(session, tr, fresh)
        if not between:
            monkeypatch.setattr(Session, "_register", register)
            between.append(opener(b))
        return answer

    monkeypatch.setattr(Session, "_register", register_late)
    assert opener(b).id == between[0].id
