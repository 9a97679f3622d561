"""A fair task queue: one tenant's flood, small tenants, several workers; small tenants must not wait long."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind, total_queue
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.by_key import fair_at_all_times, look, look_at_rounds, rounds_wait
from tests.system.workloads.common import cramped, in_batches, values_of
from tests.system.workloads.tasks import ENOUGH_S, total

NAME = "fairness"
FLOOD = "flood"


@workload(clients=2, steps=5)
def fairness(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)

    def flood(client: Client) -> None:
        q = opened(client)
        for start in range(0, 4 * size.steps, size.steps):
            put(client, q, [f"{FLOOD}.{start + n}" for n in range(size.steps)])

    def trickle(client: Client) -> None:
        q = opened(client)
        for values in in_batches(client, values_of(client, size.steps)):
            put(client, q, values)
            client.pause(0.3)

    def work(client: Client) -> None:
        q = opened(client)
        with Session(client.db, ttr=60) as session:
            for _ in range(3 * size.steps):
                take(client, q, session)

    def audit(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            look(client, NAME, TaskKeys(q.contents), partial(total, q))
            look_at_rounds(client, NAME, TaskKeys(q.contents))
            client.pause(0.3)

    def survive(client: Client) -> None:
        q, until = opened(client), client.runtime.monotonic() + ENOUGH_S
        with Session(client.db, ttr=600) as session:
            while total(q, client.db) and client.runtime.monotonic() < until:
                take(client, q, session)
        look(client, NAME, TaskKeys(q.contents), partial(total, q))

    simulation.client(flood, FLOOD)
    for number in range(size.clients):
        simulation.client(trickle, f"tenant-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(audit, "auditor")
    simulation.afterwards(survive, "survivor")
    return [
        total_queue(NAME),
        exact_statistics(NAME),
        partial(rounds_wait, NAME, key_of, size.clients),
        partial(fair_at_all_times, NAME),
        no_watch_left_behind,
    ]


def opened(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, "fair", ttr=600, if_not_exists=True)


def key_of(value: str) -> str:
    """Return the task key of a value: one for the flood, one for each small tenant, which comes and goes."""
    return value.partition(".")[0]


def put(client: Client, q: TaskQueue, values: Sequence[str]) -> None:
    key = key_of(values[0])
    client.call(NAME, "enqueue", list(values), lambda: q.put_many(client.db, values, key=key))


def take(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task and ack it."""

    def body() -> list[str]:
        task = q.take(client.db, 0.5, session=session)
        if task is None:
            return []
        q.ack(client.db, task)
        return [task.data]

    # It stalled, so its lease is over or its session is dead.
    with suppress(NotTaken, UnknownSession):
        client.call(NAME, "dequeue", 1, body)
