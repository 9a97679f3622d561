"""Workers die by SIGKILL throughout: every task is acked exactly once, and the statistics know it."""

from collections import Counter
from collections.abc import Callable

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import TaskQueue
from tests.conftest import DURABLE
from tests.spawned import crew
from tests.tasks.workers import NAME, consume, produce


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_killed_workers_lose_nothing_and_double_nothing(
    url: str, db: fdbqueue.Database, space: Subspace, rounds: Callable[[object, object], tuple[int, int, int]]
) -> None:
    tasks, size, kills = rounds((600, 4, 8), (20_000, 16, 120))
    queue = TaskQueue.create(db, NAME, "fifottl", ttr=20, root=space)
    with crew() as producer, crew() as workers:
        producer.spawn(produce, url, space.key().hex(), tasks)
        for _ in range(size):
            workers.spawn(consume, url, space.key().hex(), tasks)
        workers.kill_throughout(kills, lambda: queue.statistics(db)["calls"]["ack"] / tasks)
        assert producer.finish() == [0]
        assert workers.finish() == [0] * size
    assert workers.killed >= 5
    effects = Counter(bytes(row.value)[0] for row in db.get_range_startswith(space["effects"].key()))
    assert effects == {1: tasks}
    found = queue.statistics(db)
    calls = found["calls"]
    states = ("ready", "taken", "buried", "delayed", "due", "unreadable", "cancelled", "total")
    nothing = dict.fromkeys(states, 0)
    assert found["tasks"] == {**nothing, "done": tasks}
    assert (calls["put"], calls["ack"]) == (tasks, tasks)
    # Whatever was taken and not acked, came back in one of these ways. So did tasks on their way to a killed
    # worker, which did not receive them: their takes do not count.
    assert calls["take"] <= tasks + calls["release"] + calls["ttr"] + calls["bury"]
    assert calls["bury"] == calls["kick"]
