"""Each wait for something that does not come ends exactly at its time limit, on a clock set by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import FairQueue, Group, Queue, TaskQueue
from fdbqueue.core.errors import GroupTimeout, QueueFull, ResultTimeout
from tests.tasks.support import Bench, MakeBench, StillClock

Wait = Callable[[Bench, float], Any]


def wait_for_a_put(b: Bench, timeout: float) -> None:
    full = TaskQueue.create(b.db, "full", "limfifottl", capacity=1)
    full.put(b.db, 1)
    with pytest.raises(QueueFull):
        full.put(b.db, 2, timeout=timeout)


def wait_for_a_result(b: Bench, timeout: float) -> None:
    task = b.queue.put(b.db, 1, result_ttl=3600)
    with pytest.raises(ResultTimeout):
        b.queue.result(b.db, task, timeout)


def wait_for_progress(b: Bench, timeout: float) -> None:
    task = b.queue.put(b.db, 1)
    assert b.queue.wait_for_progress(b.db, task, task.fraction, timeout) is None


def wait_for_a_group(b: Bench, timeout: float) -> None:
    of = Group.create(b.db)
    of.put(b.db, b.queue, 1)
    of.close(b.db)
    with pytest.raises(GroupTimeout):
        of.wait(b.db, timeout)


def wait_for_progress_of_a_group(b: Bench, timeout: float) -> None:
    of = Group.create(b.db)
    of.put(b.db, b.queue, 1)
    assert of.wait_for_progress(b.db, of.progress(b.db), timeout) is None


WAITS: dict[str, Wait] = {
    "a task": lambda b, timeout: b.take(timeout),
    "room": wait_for_a_put,
    "a result": wait_for_a_result,
    "progress": wait_for_progress,
    "a group": wait_for_a_group,
    "the progress of a group": wait_for_progress_of_a_group,
    "an item": lambda b, timeout: Queue.named(b.db, "items").dequeue(b.db, timeout=timeout),
    "an item without a line": lambda b, timeout: Queue.named(b.db, "items", contended="simple").dequeue(
        b.db, timeout=timeout
    ),
    "a fair item": lambda b, timeout: FairQueue(Subspace(("fair",)), key=str).get(b.db, timeout),
}


@pytest.mark.parametrize("timeout", [0, 0.5, 7])
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_ends_at_its_time_limit(
    bench: MakeBench, clock: StillClock, name: str, timeout: float
) -> None:
    """Shorter and longer than the time after which it looks again by itself."""
    b = bench("fifottl")
    began = clock.monotonic()
    assert WAITS[name](b, timeout) is None
    assert clock.monotonic() - began == pytest.approx(timeout)
