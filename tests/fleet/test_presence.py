"""Presences: a worker is listed while its session lives, whatever happens to one of its writes."""

from collections.abc import Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Session, transactional, workers
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.embedded import FDBError
from fdbqueue.fleet import status as fleet_status
from fdbqueue.fleet.status import Appearance, Presence, Running, Tally, WorkerStatus, presence_of
from tests.support import TIMED_OUT
from tests.tasks.support import StillClock


class Shown:
    """A worker without threads: it is shown when the test says so."""

    def __init__(self, db: Database, clock: StillClock, queue: str = "jobs") -> None:
        self._db, self._clock, self._queue = db, clock, queue
        self._appearance = Appearance(db, RootKeys(DEFAULT_ROOT), lambda: self.session, self._presence)
        self.session = Session(db)
        self.running: tuple[Running, ...] = ()

    def _presence(self) -> Presence:
        status = WorkerStatus("working", Tally(), self.running, 0)
        return presence_of(self._clock, [self._queue], "handler", 1, 0.0, status)

    def tick(self) -> None:
        self._clock.advance(limits.PRESENCE_EVERY_S)
        self._appearance.tick()


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def db(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def test_a_worker_with_another_session_is_listed_again(db: Database, clock: StillClock) -> None:
    """Its counts are the same as before."""
    worker = Shown(db, clock)
    worker.tick()
    assert len(workers(db)) == 1
    worker.session.end()
    assert workers(db) == []
    worker.session = Session(db)
    worker.tick()
    assert len(workers(db)) == 1


def test_a_presence_that_was_not_written_is_written_again(
    db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(*_: Any, **__: Any) -> None:
        raise FDBError(TIMED_OUT)

    worker = Shown(db, clock)
    with monkeypatch.context() as patch:
        patch.setattr(fleet_status, "run", time_out)
        with pytest.raises(FDBError):
            worker.tick()
    worker.tick()
    assert len(workers(db)) == 1


def test_all_workers_are_listed_in_several_transactions(
    db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKERS_LISTED_MAX", 2)
    shown = [Shown(db, clock, f"q{number % 2}") for number in range(5)]
    for worker in shown:
        worker.tick()
    assert (len(workers(db)), len(workers(db, "q1"))) == (5, 2)
    assert len(transactional(workers)(db)) == 2


def test_progress_alone_is_a_change_of_a_presence(db: Database, clock: StillClock) -> None:
    worker = Shown(db, clock)
    for fraction in (None, 0.5):
        worker.running = (Running("A", "jobs", 1.0, fraction=fraction),)
        worker.tick()
        [found] = workers(db)
        assert [one.fraction for one in found.running] == [fraction]
