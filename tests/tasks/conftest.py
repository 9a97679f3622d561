"""A bench to try a kind of queue on: `bench("fifottl", ttl=60)`."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.core import limits
from tests.conftest import TEST_ROOT, open_engine
from tests.tasks.partitions import MakeParted, PartitionsBench
from tests.tasks.support import Bench, SetLimits, StillClock
from tests.tasks.trips import Trips


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def still_db(clock: StillClock) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


@pytest.fixture
def bench(still_db: fdbqueue.Database, clock: StillClock) -> Callable[..., Bench]:
    def make(kind: str = "fifo", **options: Any) -> Bench:
        return Bench(still_db, clock, kind, **options)

    return make


@pytest.fixture
def parted(engine: str, clock: StillClock, tmp_path: Path, set_limits: SetLimits) -> Iterator[MakeParted]:
    """A bench on each engine: `parted("utube", partitions=4)`."""
    if engine == "fdb":
        set_limits(SESSION_HOLD_SHARE=0)  # the clock of its database does not stand still
    root = TEST_ROOT[os.urandom(8)]  # other processes test on the same cluster
    with open_engine(engine, tmp_path / "data", clock) as database:
        yield lambda kind="fifottl", **options: PartitionsBench(database, clock, root, kind, options)
        database.clear_range_startswith(root.key())


@pytest.fixture
def set_limits(monkeypatch: pytest.MonkeyPatch) -> SetLimits:
    """`set_limits(VERB_BATCH=2)`"""

    def set_each(**values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setattr(limits, name, value)

    return set_each


@pytest.fixture
def trips(still_db: fdbqueue.Database, clock: StillClock) -> tuple[fdbqueue.Database, Trips]:
    engine = Trips(still_db.engine)
    return fdbqueue.Database(engine, clock), engine  # type: ignore[arg-type]  # options are never asked for
