"""The costs of schedules: round trips, keys and reads, of a root with schedules and of one without."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Schedule, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks import firing
from fdbqueue.tasks.firing import Due, fire
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips, trips_of

Traced = tuple[Database, Trips, StillClock]
KEYS = RootKeys(DEFAULT_ROOT)


@pytest.fixture
def traced() -> Iterator[Traced]:
    clock = StillClock(1_780_000_000.0)
    with fdbqueue.open("memory:", runtime=clock) as db:
        engine = Trips(db.engine)
        yield Database(engine, clock), engine, clock  # type: ignore[arg-type]  # options are never asked for


def keys_below(db: Database, root: Subspace = DEFAULT_ROOT) -> int:
    return len(list(db.engine.get_range(root.key(), root.key() + b"\xff")))  # type: ignore[attr-defined]


VERBS: list[tuple[str, int, Callable[[Schedule, Any], Any]]] = [
    ("status", 1, lambda schedule, tr: schedule.status(tr)),
    ("next_times", 1, lambda schedule, tr: schedule.next_times(tr)),
    ("pause", 1, lambda schedule, tr: schedule.pause(tr)),
    ("resume", 1, lambda schedule, tr: schedule.resume(tr)),
    ("change", 2, lambda schedule, tr: schedule.change(tr, data=5)),
    ("run", 3, lambda schedule, tr: schedule.run(tr)),
    ("delete", 1, lambda schedule, tr: schedule.delete(tr)),
]


def test_a_verb_waits_for_few_round_trips(traced: Traced) -> None:
    db, engine, _ = traced
    TaskQueue.create(db, "reports")
    trips, schedule = trips_of(engine, db, lambda tr: Schedule.create(tr, "s", every=60, queue="reports"))
    assert trips == 2
    found = {
        name: trips_of(engine, db, lambda tr, verb=verb: verb(schedule, tr))[0] for name, _, verb in VERBS
    }
    assert found == {name: trips for name, trips, _ in VERBS}


def test_a_schedule_is_three_keys(traced: Traced) -> None:
    db, _, _ = traced
    TaskQueue.create(db, "reports")
    before = keys_below(db)
    schedule = run(db, lambda tr: Schedule.create(tr, "s", every=60, queue="reports"))
    assert keys_below(db) == before + 3
    run(db, schedule.pause)
    assert keys_below(db) == before + 2
    run(db, schedule.delete)
    assert keys_below(db) == before


def test_a_firing_waits_for_three_round_trips(traced: Traced) -> None:
    db, engine, clock = traced
    TaskQueue.create(db, "reports")
    run(db, lambda tr: Schedule.create(tr, "s", every=60, queue="reports"))
    clock.advance(60)
    due = Due((1_780_000_000 + 60) * 1_000_000, "s")
    trips, tasks = trips_of(engine, db, lambda tr: fire(tr, db, Registry(), due))
    assert (trips, len(tasks)) == (3, 1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One None for each look for schedules that are due."""
    seen: list[None] = []
    asked = firing.ask_first

    def ask_first(tr: Any, keys: RootKeys) -> Any:
        seen.append(None)
        return asked(tr, keys)

    monkeypatch.setattr(firing, "ask_first", ask_first)
    return seen


def make_rounds(traced: Traced, rounds: int, seconds: float, sharers: int = 1) -> int:
    """Let the keeper make this number of rounds, this time apart. Return the number of its reads."""
    db, engine, clock = traced
    keeper = keeper_of(db, KEYS)
    keeper.tick()
    before = engine.reads
    for _ in range(rounds):
        keeper.sharers = sharers
        clock.advance(seconds)
        keeper.tick()
    return engine.reads - before


def test_a_root_without_schedules_costs_a_read_each_two_seconds(traced: Traced, looks: list[None]) -> None:
    with_looks = make_rounds(traced, 100, 0.2)
    assert len(looks) == pytest.approx(20 / limits.SCHEDULES_SOUGHT_EVERY_S, abs=1)
    assert with_looks > len(looks)  # the keeper reads for dead sessions, too


def test_a_root_with_a_schedule_costs_a_read_each_half_second(traced: Traced, looks: list[None]) -> None:
    db, _, _ = traced
    TaskQueue.create(db, "reports")
    run(db, lambda tr: Schedule.create(tr, "s", every=6_000, queue="reports"))
    make_rounds(traced, 100, 0.2)
    assert 20 <= len(looks) <= 20 / limits.SCHEDULES_PASSED_EVERY_S


def test_processes_that_share_a_root_share_the_looks(traced: Traced, looks: list[None]) -> None:
    make_rounds(traced, 100, 0.2, sharers=10)
    assert len(looks) <= 20 / limits.SCHEDULES_SOUGHT_EVERY_S / 10 + 1
