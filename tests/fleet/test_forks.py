"""A child that a worker or a supervisor forks has nothing of its parent: no signals, and no pipes."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Fleet, TaskQueue
from tests.conftest import DURABLE
from tests.fleet.conftest import HERE, Supervisor, gone
from tests.fleet.forking import DEEDS
from tests.support import wait_until


@pytest.fixture(params=DURABLE)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("handler", ["act", "act_on_a_loop"])
def test_a_signal_for_a_forked_child_leaves_the_worker_alone(
    db: Database, queue: TaskQueue, url: str, space: Subspace, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    """The signal ends the child, and one process of the fleet handles all tasks."""
    monkeypatch.syspath_prepend(str(HERE))
    tasks = [*DEEDS, "nothing", "nothing"]
    queue.put_many(db, tasks)
    options = {"processes": 1, "threads": 1, "attempts": 1, "until_empty": True}
    options |= {"hooks": "tests.fleet.forking:hooks"}
    fleet = Fleet(url, "jobs", f"tests.fleet.forking:{handler}", root=space, **options)
    fleet.run()
    failures = [(task.data, queue.failures(db, task)[-1].detail) for task in queue.tasks(db, "!", 9)]
    assert (failures, fleet.status().restarts, fleet.status().tally.done) == ([], 0, len(tasks))


@pytest.mark.in_turn(4)
def test_a_forked_child_that_returns_into_its_fleet_ends(
    db: Database, queue: TaskQueue, supervise: Callable[..., Supervisor]
) -> None:
    queue.put_many(db, [["sleep", 0.5]] * 4)
    supervisor = supervise(processes=1, threads=1, until_empty=True, forks="returns")
    assert supervisor.read_until(lambda said: "forked" in said)["forked"] == 0
    status, said = supervisor.end()
    assert (status, said["restarts"], said["ended"]["done"]) == (0, 0, 4)


@pytest.mark.commits_by_hand
def test_a_forked_child_does_not_stand_for_a_dead_supervisor(
    db: Database, queue: TaskQueue, supervise: Callable[..., Supervisor]
) -> None:
    """The workers end though the child of their killed supervisor lives, and a signal ends the child."""
    queue.put_many(db, [["sleep", 0.5]] * 20)
    supervisor = supervise(processes=1, threads=1, forks="stays")
    told = supervisor.read_until(lambda said: "forked" in said)
    try:
        supervisor.process.kill()
        wait_until(lambda: all(gone(pid) for pid, _, _ in told["processes"]), 100)
        assert not gone(told["forked"])
        os.kill(told["forked"], signal.SIGTERM)
        wait_until(lambda: gone(told["forked"]))
    finally:
        with suppress(ProcessLookupError):
            os.kill(told["forked"], signal.SIGKILL)
