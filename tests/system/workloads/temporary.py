"""Temporary queues of owners that end, die or stall; guests that open them by name, and the next owners."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, QueueDropped, QueueExists, QueueNotFound, UnknownSession
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.tasks import counted_and_found, total
from tests.system.workloads.temporary_checks import NAME, NAMES, SESSION_TTR_S, Made, checks

LIVES = 3
OVER = (QueueDropped, UnknownSession, QueueNotFound)


@workload(clients=2, steps=4)
def temporary(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    # The sessions of a process are those of its database, so their ttr is that of all.
    simulation.limit(VERB_BATCH=3, SESSION_TTR_S=SESSION_TTR_S)

    sweeps = simulation.random.random() < 0.5

    def own(life: int, client: Client) -> None:
        """Make a queue, or wait until the one of another owner has ended; use it, and empty it."""
        client.db.session_ttr_s = SESSION_TTR_S
        client.runtime.sleep(life * client.random.uniform(0.2, 2) * SESSION_TTR_S)
        name = client.random.choice(NAMES)
        for _ in range(3 * size.steps):
            with suppress(QueueExists, *OVER):
                q = make(client, name)
                use(client, q, size.steps)
                while client.call(NAME, "empty", key_of(q), partial(total, q, client.db)):
                    finish(client, q)
                return
            client.pause(1)

    def visit(client: Client) -> None:
        for _ in range(2 * size.steps):
            client.pause(1)
            with suppress(*OVER):
                use(client, TaskQueue.open(client.db, client.random.choice(NAMES)), size.steps)

    def survive(client: Client) -> None:
        client.db.session_ttr_s = SESSION_TTR_S
        if sweeps:
            look(client)
        else:  # the opening has to end the sessions of dead owners
            client.runtime.sleep(3 * SESSION_TTR_S)
        for name in NAMES:
            q = make(client, name)
            client.call(NAME, "put", (key_of(q), f"last of {name}"), partial(q.put, client.db, "last"))

    for number in range(size.clients):
        for life in range(LIVES):
            simulation.client(partial(own, life), f"owner-{number}.{life}")
        simulation.client(visit, f"guest-{number}")
    simulation.afterwards(survive, "survivor")
    return [exact_statistics(NAME), no_watch_left_behind, *checks(simulation.faults)]


def look(client: Client) -> None:
    """Count the tasks that are left, after a time in which this process sweeps."""
    for name in NAMES:
        with suppress(QueueNotFound):
            q = TaskQueue.open(client.db, name)
            q.take(client.db, 0)
            client.runtime.sleep(3 * SESSION_TTR_S)
            client.call(NAME, "left", name, partial(total, q, client.db))


def make(client: Client, name: str) -> TaskQueue:
    """Make the temporary queue of this name, and tell its contents."""
    made: list[TaskQueue] = []

    def body() -> Made:
        q = TaskQueue.create(client.db, name, "fifottl", ttr=2, temporary=True, if_not_exists=True)
        made.append(q)
        return Made(name, key_of(q), q.statistics(client.db)["calls"]["put"])

    client.call(NAME, "make", name, body)
    return made[0]


def key_of(q: TaskQueue) -> bytes:
    key: bytes = q.contents.key()
    return key


def use(client: Client, q: TaskQueue, steps: int) -> None:
    for step in range(steps):
        value = f"{client.name}.{client.random.random():.6f}.{step}"
        put: Callable[[], Task] = partial(q.put, client.db, value)
        client.call(NAME, "put", (key_of(q), value), put)
        client.pause(0.3)
        if client.random.random() < 0.5:
            finish(client, q)
        client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))


def finish(client: Client, q: TaskQueue) -> None:
    task = q.take(client.db, client.random.choice((0, 1)))
    if task is not None:
        client.pause(0.3)
        with suppress(NotTaken):
            client.call(NAME, "finish", (key_of(q), task.data), partial(q.ack, client.db, task))
