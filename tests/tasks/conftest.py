"""A bench to try a kind of queue on: `bench("fifottl", ttl=60)`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue
from tests.tasks.support import Bench, StillClock


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
