"""Looks of the workload `exact_worker`: at a task as its attempt begins, and at the queue at the end."""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.errors import NoResult
from fdbqueue.core.page import every_row
from fdbqueue.core.task import Task
from tests.system.workloads.effects import effects_in
from tests.system.workloads.exact_calls import require_equal
from tests.system.workloads.exact_worker_model import ROUNDING_S, Life, World


def look_at_the_task(world: World, task: Task, life: Life) -> None:
    """Check that an attempt begins in its time, with the counts and the history of those before it."""
    assert life.state == "r", f"{life.data} is {life.state}, and begins an attempt"
    require_equal(f"attempts of {life.data}", task.attempts, life.attempts)
    require_equal(f"failures of {life.data}", task.failures, life.failures)
    early_s = life.due_s - world.now_s
    assert early_s <= ROUNDING_S, f"attempt {life.attempts} of {life.data} begins {early_s} s early"
    if world.plan.threads == 1:
        early_s = world.away_until_s - world.now_s
        assert early_s <= ROUNDING_S, f"{life.data} begins {early_s} s before the end of a pause"
    life.state = "t"
    _look_at_the_history(world, task, life)


def look_at_the_end(world: World) -> None:
    """Check that the queue holds the buried tasks only, and each result and effect is there once."""
    db, q, lives = world.client.db, world.q, world.lives.values()
    buried = {task.id: task for task in _buried(world)}
    require_equal("buried", sorted(buried), sorted(life.id for life in lives if life.state == "!"))
    require_equal("unfinished", [life.data for life in lives if life.state not in "!-"], [])
    require_equal("tasks", sum(q.statistics(db)["tasks"][name] for name in ("ready", "taken", "delayed")), 0)
    effects = effects_in(db)
    for life in lives:
        require_equal(f"effects of {life.data}", effects.get(life.data, 0), life.effects)
        if life.id in buried:
            require_equal(f"failures of {life.data}", buried[life.id].failures, life.failures)
            _look_at_the_history(world, buried[life.id], life)
        elif life.wants_result:
            require_equal(f"result of {life.data}", _result(world, life), life.result)


def _buried(world: World) -> Iterator[Task]:
    return every_row(partial(world.q.tasks, world.client.db, "!", len(world.lives)))


def _look_at_the_history(world: World, task: Task, life: Life) -> None:
    """Check the last failures of a task."""
    found = world.q.failures(world.client.db, task)
    expected = life.history[-limits.FAILURES_KEPT :]
    require_equal(f"failures of {life.data}", [one.outcome for one in found], [one[2] for one in expected])
    for one, (error, message, _) in zip(found, expected, strict=True):
        require_equal("error", one.error, error)
        require_equal("message", one.message, one.message if message is None else message)


def _result(world: World, life: Life) -> object:
    try:
        return world.q.result(world.client.db, life.id, timeout=0)
    except NoResult:
        return None
