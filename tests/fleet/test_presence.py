"""What a worker shows: its presence while its session lives, its logs, and the slots for running tasks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, HeldTask, Hooks, Session, transactional, workers
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.embedded import FDBError
from fdbqueue.fleet import status as fleet_status
from fdbqueue.fleet import steering
from fdbqueue.fleet.gate import PAUSED, Gate, Order, ask_order
from fdbqueue.fleet.options import Event
from fdbqueue.fleet.status import (
    Appearance,
    AtWork,
    Presence,
    Running,
    Tally,
    WorkerStatus,
    named,
    presence_of,
)
from tests.support import TIMED_OUT
from tests.tasks.support import StillClock


class Shown:
    """A worker without threads: it is shown when the test says so."""

    def __init__(self, db: Database, clock: StillClock, queue: str = "jobs") -> None:
        self._db, self._clock, self._queue = db, clock, queue
        self.gate = Gate()
        shown = (lambda: self.session), self._presence, self.gate
        self._appearance = Appearance(db, RootKeys(DEFAULT_ROOT), *shown)
        self.session = Session(db)
        self.running: tuple[Running, ...] = ()

    def _presence(self) -> Presence:
        status = WorkerStatus("working", Tally(), self.running, 0)
        return presence_of(self._clock, [self._queue], "handler", 1, 0.0, status, self.gate.answer())

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


def test_an_answer_is_shown_at_once(db: Database, clock: StillClock) -> None:
    worker = Shown(db, clock)
    worker.tick()
    worker.gate.obey(Order(PAUSED, 1.0))
    worker._appearance.tick()
    assert [(one.state, one.pause) for one in workers(db)] == [(PAUSED, 1.0)]


def test_a_pause_finds_a_worker_or_the_worker_finds_it(
    db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause commits while the first presence of a worker is on its way."""
    worker, keys = Shown(db, clock), RootKeys(DEFAULT_ROOT)

    def seen(*arguments: Any) -> Any:
        asked = ask_order(*arguments)
        if steering.paused(db, keys) is None:
            steering.pause(db, keys)
            assert steering.members(db, keys) == []
        return asked

    monkeypatch.setattr(fleet_status, "ask_order", seen)
    worker._appearance.begin()
    assert not worker.gate.enter()


def test_another_session_is_shown_at_once(db: Database, clock: StillClock) -> None:
    worker = Shown(db, clock)
    worker.tick()
    worker.session.end()
    worker.session = Session(db)
    worker._appearance.tick()
    assert len(workers(db)) == 1


def test_orders_are_read_less_often_than_news_are_written(
    db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens, a worker without news reads them once in limits.ORDERS_EVERY_S."""
    worker, read_at = Shown(db, clock), list[float]()

    def seen(*arguments: Any) -> Any:
        read_at.append(clock.monotonic())
        return ask_order(*arguments)

    monkeypatch.setattr(fleet_status, "ask_order", seen)
    for _ in range(10):
        worker.tick()
    steps = {later - earlier for earlier, later in pairwise(read_at)}
    assert steps == {3 * limits.PRESENCE_EVERY_S}


def test_a_presence_tells_the_leases_of_its_worker(clock: StillClock) -> None:
    status = WorkerStatus("working", Tally(), (Running("A", "q", 1.0),), 0)
    assert presence_of(clock, ["q"], "handler", 1, 0.0, status, held=3).held == 3


LOGGING = """
import logging
from fdbqueue.fleet.logs import logging_at
with logging_at("info"):
    logging.getLogger("mine").info("one")
    logging.basicConfig(format="mine: %(message)s", level=logging.WARNING)
    logging.getLogger("mine").warning("two")
    logging.getLogger("mine").info("three")
"""


PRINTING = """
import sys
from fdbqueue.fleet.logs import write_above_the_bar
write_above_the_bar()
print("a")
print("b", file=sys.stderr)
"""


def test_a_log_that_the_program_configures_is_used_alone() -> None:
    """No line is written twice, and none in our format."""
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert first.endswith("] one")
    assert second == "mine: two"


@pytest.fixture
def at_work():
    made = AtWork.create(2)
    yield made
    made.close()


def event(name, id_):
    task = HeldTask(**dict.fromkeys(HeldTask.__dataclass_fields__) | {"id": id_, "queue": "jobs"})
    return Event(name, task)


def test_a_task_has_a_slot_while_its_handler_runs(at_work):
    told = []
    hooks = at_work.told_to(Hooks(started=told.append))
    hooks.started(event("started", "A"))
    hooks.started(event("started", "B"))
    assert sorted(AtWork(at_work.descriptor, 2).tasks()) == ["task A of jobs", "task B of jobs"]
    hooks.lease_lost(event("lease_lost", "A"))
    assert at_work.tasks() == ["task B of jobs"]
    hooks.started(event("started", "C"))
    assert sorted(at_work.tasks()) == ["task B of jobs", "task C of jobs"]
    assert [told_of.task.id for told_of in told] == ["A", "B", "C"]


def test_a_task_without_a_free_slot_is_left_out(at_work):
    hooks = at_work.told_to(Hooks())
    for id_ in "ABC":
        hooks.started(event("started", id_))
    hooks.succeeded(event("succeeded", "C"))
    assert len(at_work.tasks()) == 2


def test_only_the_first_tasks_are_named():
    assert named([]) == ""
    assert named(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_a_task_without_a_worker_has_no_database():
    with pytest.raises(InvalidArgument, match="passed to a handler"):
        _ = event("started", "A").task.database


def test_a_line_on_a_terminal_erases_the_progress_bar():
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", PRINTING], stdout=theirs, stderr=theirs, check=True)
    assert os.read(ours, 100) == b"\r\x1b[Ka\r\n\r\x1b[Kb\r\n"
    os.close(ours)
    os.close(theirs)
