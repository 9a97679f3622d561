"""Consumers die by SIGKILL throughout: every element has its effect exactly once."""

from collections.abc import Callable

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.conftest import DURABLE
from tests.elements.workers import consume, effects, produce, queue
from tests.spawned import crew

WRITERS, CONSUMERS = 4, 4


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_killed_consumers_lose_nothing_and_double_nothing(
    url: str, db: fdbqueue.Database, space: Subspace, rounds: Callable[[object, object], tuple[int, int]]
) -> None:
    """Four writers, four consumers; in the long version two thousand elements."""
    count, kills = rounds((50, 8), (500, 60))
    total, prefix = WRITERS * count, space.key().hex()
    with crew() as writers, crew() as consumers:
        for writer in range(WRITERS):
            writers.spawn(produce, url, prefix, writer, count)
        for _ in range(CONSUMERS):
            consumers.spawn(consume, url, prefix, total)
        consumers.kill_throughout(kills, lambda: len(effects(db, space)) / total)
        assert writers.finish() == [0] * WRITERS
        assert consumers.finish() == [0] * CONSUMERS
    assert consumers.killed >= 5, "most were at work when they were killed"
    expected = {f"{writer}.{number}": 1 for writer in range(WRITERS) for number in range(count)}
    assert effects(db, space) == expected
    assert (queue(space).count(db), list(queue(space).names(db))) == (0, [])
