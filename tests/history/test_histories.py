"""Histories of real threads and of processes that are killed and stalled; planted bugs show in them.

With FDBQUEUE_PORCUPINE, Porcupine judges the same history: each bug that it finds, our judge has found.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database
from fdbqueue.core import once
from fdbqueue.core.seam import FDBError
from fdbqueue.queues import fair
from fdbqueue.queues.recipe import items as recipe
from fdbqueue.tasks import edges, verbs
from fdbqueue.testing.history import Call, judge
from tests.conftest import DURABLE, SLOW
from tests.history.runs import CASES, MODELS, PORCUPINE, TTR_US, by_porcupine, by_processes, by_threads
from tests.queue_support import faulty
from tests.simulation.planted import Plant, planted
from tests.support import COMMIT_UNKNOWN

FEW = ("items of one consumer", "leases")
"""Cases of the short version: each starts five processes or more."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "histories"
    made.mkdir()
    return made


@pytest.mark.parametrize("case", CASES)
def test_threads_keep_the_promise(
    case: str, db: Database, space: Subspace, directory: Path, rounds: Callable[[int, int], int]
) -> None:
    kind, model, consumers = CASES[case]
    calls = by_threads(kind, consumers, [db], space, directory, rounds(20, 200))
    require_sound(calls, model, directory)


@pytest.mark.parametrize("case", CASES if SLOW else FEW)
@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_killed_and_stalled_processes_keep_the_promise(
    case: str, db: Database, url: str, space: Subspace, directory: Path, rounds: Callable[[int, int], int]
) -> None:
    kind, model, consumers = CASES[case]
    count, kills = rounds(12, 150), rounds(1, 12)
    calls = by_processes(kind, consumers, db, url, space, directory, count, kills)
    require_sound(calls, model, directory)


def require_sound(calls: list[Call], model: str, directory: Path) -> None:
    assert len(calls) > 20
    verdict = judge(calls, MODELS[model])
    assert verdict.is_sound, verdict
    if PORCUPINE is not None:
        assert by_porcupine(calls, model, TTR_US, directory) != "broken"


ROUNDS_MAX = 10
COUNT = 15


def sometimes_unknown(number: int) -> tuple[int, bool]:
    """Of five commits, one is done with an unknown result, and one is not done with an unknown result."""
    return {1: (COMMIT_UNKNOWN, True), 3: (COMMIT_UNKNOWN, False)}.get(number % 5, (0, True))


def plant(what: str, function: Callable[..., Any], old: str, new: str, case: str) -> Plant:
    return Plant(what, function, old, new, case, ROUNDS_MAX)


PLANTS = [
    plant(
        "an item that is given twice",
        recipe.Recipe.hand_out,
        "tr.add_read_conflict_range(",
        "max(",
        "items of many consumers",
    ),
    plant(
        "an item that is lost after an unknown commit",
        once._Call.run,
        "if self._unsure else None",
        "if False else None",
        "items of many consumers",
    ),
    plant(
        "a put that is told after an unknown commit that was not done",
        once._Call.run,
        "self._tr.on_error(error).wait()",
        "if error.code == 1021:\n                return answer\n            self._tr.on_error(error).wait()",
        "items of one consumer",
    ),
    plant(
        "nothing beside an item that waits",
        recipe.Recipe.available,
        "if passed else offers",
        "if passed else list(offers)[1:]",
        "items of many consumers",
    ),
    plant(
        "items in any order",
        recipe.Recipe.append,
        "enumerate(payloads, first)",
        "enumerate(payloads, random[0])",
        "items of one consumer",
    ),
    plant(
        "items of a key in any order",
        fair.FairItems.append,
        "max(behind, _floor_of(floor.value))",
        "random[0]",
        "tenants of one consumer",
    ),
    plant(
        "two live leases of one task",
        edges._lease_end,
        "record.ttr_us,",
        "record.ttr_us // 4,",
        "leases",
    ),
    plant(
        "a renewal without an effect",
        edges.renew,
        "until_us=_lease_end(change, record)",
        "until_us=record.until_us",
        "leases",
    ),
    plant(
        "an ack by a lease that is over",
        verbs.Target.holds,
        "record.token == self.token",
        "True",
        "leases",
    ),
    plant(
        "an ack that leaves the task",
        verbs.ack,
        "edges.ack(change, [record], result)",
        "edges.release(change, [record])",
        "leases",
    ),
]
AGREED = {("sound", "sound"), ("broken", "broken"), ("broken", "undecided")}
"""Pairs of verdicts, of our judge and of Porcupine, which does not decide each history within its time."""


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.what)
def test_a_planted_bug_is_found(bug: Plant, db: Database, tmp_path: Path) -> None:
    kind, model, consumers = CASES[bug.workload]
    for number in range(ROUNDS_MAX):
        directory = tmp_path / str(number)
        directory.mkdir()
        databases = [database_of(db, "unknown commit" in bug.what) for _ in range(consumers)]
        with planted(bug):
            calls = by_threads(kind, consumers, databases, Subspace((number,)), directory, COUNT)
        for database in databases:
            database.close()
        verdict = judge(calls, MODELS[model])
        if PORCUPINE is not None:
            assert (verdict.outcome, by_porcupine(calls, model, TTR_US, directory)) in AGREED
        if verdict.outcome == "broken":
            return
    pytest.fail(f"not found in {ROUNDS_MAX} histories")


def database_of(db: Database, has_doubts: bool) -> Database:
    """A database of its own on the same engine, as another process has it: calls of two do not combine."""
    database, engine = faulty(db, FDBError)
    if has_doubts:
        engine.fate = sometimes_unknown
    return database
