"""A queue of the workload `several` that fails for a while, like one with damaged keys."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from fdbqueue.testing.trace import Trace
from tests.system.workloads.effects import effects_in
from tests.system.workloads.several_checks import NAME

ODD = "odd"
FAILS_S = (0.3, 3.0, 100.0)
TTR_S = 2.0


def failing(client: Client) -> TaskQueue:
    """Put a task into the queue. Return a handle of it; its takes fail for some time."""
    until_s = client.runtime.monotonic() + client.random.choice(FAILS_S)

    class Failing(TaskQueue):
        def take_many(self, *arguments: Any, **options: Any) -> list[Task]:
            if client.runtime.monotonic() < until_s:
                client.call(NAME, "fail", client.name, refuse)
            return super().take_many(*arguments, **options)

    q = Failing.create(client.db, ODD, "fifottl", ttr=TTR_S, if_not_exists=True)
    value = f"{ODD} {client.name} {until_s}"
    client.call(NAME, "put into it", value, partial(q.put, client.db, value))
    return q


def refuse() -> None:
    raise ValueError("this queue is odd")


def failing_takes_are_few(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker leaves a queue alone for a while after a failed take."""
    tries = sorted(trace.of(NAME, "fail", "start"), key=lambda op: op.began)
    for client in sorted({op.argument for op in tries if op.name == "fail"}):
        of_it = [op for op in tries if client in (op.argument, op.client)]
        for first, second in pairwise(of_it):
            pause_s = second.began_s - first.began_s
            if first.name == second.name == "fail" and pause_s < limits.AWAY_FIRST_S:
                yield f"{client} has tried a queue that fails again after {pause_s:.2f} s"


def a_failing_queue_is_tried_again(trace: Trace, database: Database) -> Iterator[str]:
    """Check that the tasks of that queue have their effects in the end."""
    effects = effects_in(database)
    for put in trace.of(NAME, "put into it"):
        if put.done and effects.get(put.argument) != 1:
            yield f"{effects.get(put.argument, 0)} effects of {put.argument!r}"
