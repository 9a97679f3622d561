"""Histories of real threads and of processes that are killed and stalled; planted bugs show in them.

With FDBQUEUE_PORCUPINE, Porcupine judges the same history: each bug that it finds, our judge has found.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database
from fdbqueue.core.seam import FDBError
from fdbqueue.testing.history import Call, judge
from tests.conftest import DURABLE, SLOW
from tests.history.runs import CASES, MODELS, PORCUPINE, TTR_US, by_porcupine, by_processes, by_threads
from tests.queue_support import faulty
from tests.simulation.planted import Plant, listed, planted
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


COUNT = 15


def sometimes_unknown(number: int) -> tuple[int, bool]:
    """Of five commits, one is done with an unknown result, and one is not done with an unknown result."""
    return {1: (COMMIT_UNKNOWN, True), 3: (COMMIT_UNKNOWN, False)}.get(number % 5, (0, True))


PLANTS = tuple(listed(Path(__file__).with_name("planted.txt")))
"""As `tests/simulation/planted.txt`: the workload is a case, and the seeds are histories."""
AGREED = {("sound", "sound"), ("broken", "broken"), ("broken", "undecided")}
"""Pairs of verdicts, of our judge and of Porcupine, which does not decide each history within its time."""


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.what)
def test_a_planted_bug_is_found(bug: Plant, db: Database, tmp_path: Path) -> None:
    kind, model, consumers = CASES[bug.workload.replace("-", " ")]
    for number in range(bug.seeds_max):
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
    pytest.fail(f"not found in {bug.seeds_max} histories")


def database_of(db: Database, has_doubts: bool) -> Database:
    """A database of its own on the same engine, as another process has it: calls of two do not combine."""
    database, engine = faulty(db, FDBError)
    if has_doubts:
        engine.fate = sometimes_unknown
    return database
