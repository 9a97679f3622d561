"""Python calls of a take under a limit: a limit that does not bind may not make it much dearer."""

from statistics import median

import pytest

import fdbqueue
from fdbqueue import Limit, Task, TaskQueue
from tests.test_call_counts import CALLS, ROOM, RUNS, WARM_UP, calls_of

MORE = {"slots": 57, "starts": 58, "named slots": 96, "named starts": 98}
"""Calls above the engine more than without a limit, as measured with Python 3.11."""


@pytest.mark.parametrize("kind", sorted(MORE))
def test_a_take_under_a_limit_makes_few_calls_more(kind: str) -> None:
    is_named, name = kind.startswith("named "), kind.removeprefix("named ")
    with fdbqueue.open("memory:") as db:
        Limit.set(db, "slots", slots=1_000)
        Limit.set(db, "starts", rate=1_000_000, per=1, burst=100_000)
        queue = TaskQueue.create(db, "q", **{"task_limits" if is_named else "limits": [name]})
        queue.put_many(db, range(RUNS + WARM_UP), limits=[name] if is_named else None)
        taken: list[Task | None] = []
        seen = [calls_of(lambda: taken.append(queue.take(db, 0)))[0] for _ in range(RUNS + WARM_UP)]
    assert None not in taken
    assert median(seen[WARM_UP:]) <= (CALLS["take"] + MORE[kind]) * ROOM
