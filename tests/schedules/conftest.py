"""A bench to try schedules on, on each engine, with a clock that is set by hand."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TEST_ROOT, open_engine
from tests.schedules.support import ScheduleBench, StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock(1_780_000_000.0)  # 28 May 2026, 20:26:40 UTC


@pytest.fixture
def bench(engine: str, clock: StillClock, tmp_path: Path) -> Iterator[ScheduleBench]:
    root = TEST_ROOT[os.urandom(8)]  # other processes test on the same cluster
    with open_engine(engine, tmp_path / "data", clock) as database:
        yield ScheduleBench(database, clock, root)
        database.clear_range_startswith(root.key())
