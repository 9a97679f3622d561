"""A session ends by the clock of the process that looks, but not while its heartbeat holds it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fdb import tuple as layer

from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run, ticks_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import RealRuntime, Thread
from fdbqueue.core.sessions.ending import Overdue, end_overdue, end_the_dead
from tests.conftest import TEST_ROOT, open_engine
from tests.tasks.support import LONG_S, IdleThread

AHEAD_S = 3_600.0


class Still(RealRuntime):
    """The real clock of a process that sends no heartbeat by itself, `ahead_s` ahead."""

    ahead_s = 0.0

    def now(self) -> float:
        return RealRuntime.now() + self.ahead_s

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        return IdleThread() if name == "fdbqueue-keeper" else super().spawn(target, name)


class Fleet:
    """A queue, and two processes: the clock of the second one is an hour ahead."""

    def __init__(self, right: Database, wrong: Database) -> None:
        self.right, self.wrong = right, wrong
        self.root = TEST_ROOT[os.urandom(8)]
        self.keys = RootKeys(self.root)
        self.queue = TaskQueue.create(right, "clocks", root=self.root)

    def open(self, db: Database, ttr: float, name: str | None = None) -> Session:
        return Session(db, name, ttr, root=self.root)

    def is_stored(self, session: Session) -> bool:
        return self.right[self.keys.session(session.id)] is not None

    def sweep(self) -> None:
        end_the_dead(self.wrong, self.keys)


@pytest.fixture
def fleet(engine: str, tmp_path: Path) -> Iterator[Fleet]:
    ahead = Still()
    ahead.ahead_s = AHEAD_S
    with open_engine(engine, tmp_path / "data", Still()) as right:
        made = Fleet(right, Database(right.engine, ahead))
        yield made
        made.wrong.close()
        right.clear_range_startswith(made.root.key())


def test_a_clock_that_is_ahead_ends_no_live_session(fleet: Fleet) -> None:
    session = fleet.open(fleet.right, 300)
    fleet.sweep()
    assert fleet.is_stored(session)


def test_a_session_with_a_clock_that_is_behind_lives(fleet: Fleet) -> None:
    """Its deadlines are in the past for all others."""
    session = fleet.open(fleet.wrong, 300)
    session._runtime.ahead_s = -AHEAD_S  # type: ignore[attr-defined]
    session.beat()
    end_the_dead(fleet.right, fleet.keys)
    assert fleet.is_stored(session)


def test_a_take_by_a_clock_that_is_ahead_answers(fleet: Fleet) -> None:
    """It neither gets the task of a live session, nor tries again and again to end that."""
    session = fleet.open(fleet.right, 300)
    fleet.queue.put(fleet.right, "x")
    task = fleet.queue.take(fleet.right, 0, session=session)
    taker = fleet.open(fleet.wrong, LONG_S)
    assert fleet.queue.take(fleet.wrong, 0, session=taker) is None
    assert fleet.queue.ack(fleet.right, task).id == task.id


def test_a_take_looks_behind_sessions_that_a_hold_keeps(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their deadlines come first, as their clocks are behind."""
    monkeypatch.setattr(limits, "DEAD_SESSIONS_MAX", 2)
    dead = fleet.open(fleet.right, 300)
    fleet.queue.put(fleet.right, "x")
    fleet.queue.take(fleet.right, 0, session=dead)
    deadline_us, begin, _ = layer.unpack(fleet.right[fleet.keys.heartbeat(dead.id)])
    fleet.right[fleet.keys.heartbeat(dead.id)] = layer.pack((deadline_us, begin - 1, begin))
    for _ in range(5):
        fleet.open(fleet.right, 200)
    taken = fleet.queue.take(fleet.wrong, 0, session=fleet.open(fleet.wrong, LONG_S))
    assert taken is not None


def test_a_heartbeat_after_the_look_of_a_sweep_keeps_the_session(fleet: Fleet) -> None:
    session = fleet.open(fleet.right, 300)
    deadline_us = layer.unpack(fleet.right[fleet.keys.heartbeat(session.id)])[0]
    seen = Overdue(session.id, deadline_us, False, fleet.wrong.runtime.now_us())
    session.beat()
    end_overdue(fleet.wrong, fleet.keys, [seen])
    assert fleet.is_stored(session)


def test_a_session_ends_once_its_hold_is_over(fleet: Fleet) -> None:
    session = fleet.open(fleet.right, 300)
    deadline_us, begin, end = layer.unpack(fleet.right[fleet.keys.heartbeat(session.id)])
    assert (begin <= run(fleet.right, ticks_of), end - begin) == (True, 270_000_000)
    fleet.right[fleet.keys.heartbeat(session.id)] = layer.pack((deadline_us, begin - 270_000_000, begin))
    fleet.sweep()
    assert not fleet.is_stored(session)


@pytest.mark.parametrize("hold", [(), (2**62, 2**62 + 1), ("?", None)])
def test_a_hold_of_another_database_or_none_keeps_no_session(fleet: Fleet, hold: tuple[object, ...]) -> None:
    """As after a restore into a cluster with lower versions, or of an earlier release."""
    session = fleet.open(fleet.right, 300)
    at = fleet.keys.heartbeat(session.id)
    fleet.right[at] = layer.pack((layer.unpack(fleet.right[at])[0], *hold))
    fleet.sweep()
    assert not fleet.is_stored(session)


def test_an_opener_with_a_clock_ahead_ends_no_other(fleet: Fleet) -> None:
    one, other = (fleet.open(db, 300, "shared") for db in (fleet.right, fleet.wrong))
    assert one.id == other.id
    other.beat()
    assert fleet.right[fleet.keys.opener(one.id, one._opener)] is not None
    other.end()
    fleet.sweep()
    assert fleet.is_stored(one)


def test_a_clock_ahead_shares_the_live_session_of_a_name(fleet: Fleet) -> None:
    one = fleet.open(fleet.right, 300, "shared")
    assert fleet.open(fleet.wrong, 300, "shared").id == one.id
