"""A task queue: workers that die, stall, or end their sessions with tasks in hand; effects beside acks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, or_a_bag
from tests.system.workloads.stage import (
    EFFECTS,
    Tasks,
    audit,
    by_chance,
    once_each,
    play,
    put_plain,
    taken,
)

NAME = "tasks"


@workload(clients=2, steps=4)
def tasks(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    queue = Tasks(NAME, or_a_bag(simulation, "fifottl"), ttr=2)
    roles = {
        "producer-": queue.putting(size.steps, 0.2, put),
        "worker-": queue.working(size.steps, once, lives=2, after_death_s=0.5),
        "auditor": queue.repeating(size.steps, audit, 0.5),
    }
    play(simulation, size, roles, {"survivor": queue.outliving(finish)})
    return [exact_statistics(NAME), partial(once_each, NAME), no_watch_left_behind]


def put(client: Client, q: TaskQueue, value: str) -> None:
    put_plain(client, q, value, delay=client.random.choice((0, 0, 0.5)))


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and call one method with it, by chance."""
    task = taken(client, q, client.random.choice((0, 1, 3)), session)
    if task is not None:
        client.pause(0.5)
        by_chance(client, q, task, VERBS, delays_s=(0, 0.5), late_s=0.1)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Any) -> None:
        # Only the latest lease may end a task; another one is recorded like two effects.
        latest = q.ack(tr, task).attempts == task.attempts
        tr.add(EFFECTS + task.data.encode(), b"\x01" if latest else b"\x02")

    try:
        client.call(NAME, "finish", task.data, lambda: run(client.db, body))
    except NotTaken:
        client.pause(0.1)


VERBS = (finish, finish, "put off", "touch", "bury", "kick", "release all")
