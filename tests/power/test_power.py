"""Power cuts at any moment, and disks that fail, lose no acknowledged commit."""

import errno
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fdbqueue.embedded import journal
from tests.power import faults, forger, recording
from tests.power.disk import (
    Kind,
    Plant,
    early_free,
    early_rename,
    late_record_sync,
    no_data_sync,
    no_directory_sync,
    no_record_sync,
    swapped,
)
from tests.power.runs import DATA, Run, failing, forged, judge, main_folder, opened, recorded, upgraded

pytestmark = [
    pytest.mark.skipif(recording.compiler() is None, reason="no C compiler: apt-get install gcc"),
    pytest.mark.in_turn(4),
]
CUTS = 30
PLANT_ROUNDS, PLANT_CUTS = 20, 10
"""Each round cuts the whole run: a bug that shows at its end alone is found in the first ones."""
SEED = 1


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """A run of two processes, recorded once for all tests."""
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        yield recorded(Path(made), processes=2, steps=12)


@pytest.fixture(scope="module")
def tiny_run() -> Iterator[Run]:
    """A run with many checkpoints."""
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        yield recorded(Path(made), processes=2, steps=12, shape="tiny")


def is_found(planted: Run, folder: Path) -> bool:
    seeds = range(SEED, SEED + PLANT_ROUNDS)
    return any(any(judge(planted, folder, seed, PLANT_CUTS)) for seed in seeds)


def test_a_power_cut_loses_no_acknowledged_commit(run: Run, folder: Path) -> None:
    assert list(judge(run, folder, SEED, CUTS)) == []


def test_a_power_cut_at_a_checkpoint_loses_no_commit(tiny_run: Run, folder: Path) -> None:
    assert list(judge(tiny_run, folder, SEED, CUTS)) == []


def test_power_cuts_at_recoveries_lose_no_commit(tiny_run: Run, folder: Path) -> None:
    assert list(judge(tiny_run, folder, SEED, 3, 12)) == []


def test_a_power_cut_at_an_upgrade_loses_nothing(folder: Path) -> None:
    assert list(judge(upgraded(folder, 2, "tiny"), folder, SEED, CUTS)) == []


@pytest.mark.parametrize(
    "plant", [no_data_sync, no_directory_sync, swapped, no_record_sync, late_record_sync, early_free]
)
def test_the_judge_finds_a_planted_bug(tiny_run: Run, folder: Path, plant: Plant) -> None:
    planted = replace(tiny_run, records=list(plant(tiny_run.records)))

    assert is_found(planted, folder)


def test_the_judge_finds_a_base_with_an_early_name(run: Run, folder: Path) -> None:
    """Before the first note, the base is new."""
    records = list(early_rename(run.records))
    first = next(number for number, record in enumerate(records) if record.kind is Kind.NOTE)

    assert is_found(replace(run, records=records[:first]), folder)


def test_a_value_that_looks_like_a_record_is_none(folder: Path) -> None:
    assert list(judge(forged(folder, "salted"), folder, SEED, 20)) == []


def test_the_judge_finds_a_seal_without_the_salt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = forged(folder, forger.UNSALTED)
    monkeypatch.setattr(journal, "_seal", forger.unsalted)

    assert is_found(planted, folder)


@pytest.mark.parametrize(
    ("at", "error"),
    [(3, errno.EIO), (9, errno.EIO), (17, errno.EIO), (24, errno.EIO), (29, errno.EIO), (34, errno.ENOSPC)],
)
def test_an_error_of_the_disk_ends_one_call(folder: Path, at: int, error: int) -> None:
    run, status = failing(folder, at, error)

    assert Kind.FAILED in {record.kind for record in run.records}
    assert status == 0
    assert list(opened(run.root / DATA, run.expected, run.shape)) == []
    assert list(judge(run, folder, SEED, 10)) == []


@pytest.mark.parametrize(("at", "error"), [(2, errno.EIO), (7, errno.ENOSPC), (12, errno.EIO)])
def test_an_error_in_a_recovery_ends_one_opening(tiny_run: Run, folder: Path, at: int, error: int) -> None:
    run, status = faults.cut_and_failing(tiny_run, folder, at, error, 1, tiny_run.shape)

    assert Kind.FAILED in {record.kind for record in run.records}
    assert status == 0
    assert list(opened(run.root / DATA, run.expected, run.shape)) == []
    assert list(judge(run, folder, SEED, 10)) == []
