"""Histories of real threads and of processes that are killed and stalled: each queue keeps its promise."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database
from fdbqueue.testing.history import Call, judge
from tests.conftest import DURABLE, SLOW
from tests.history.checker import PORCUPINE, by_porcupine
from tests.history.runs import CASES, MODELS, TTR_US, by_processes, by_threads

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
