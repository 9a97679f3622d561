"""Readers that hold items while they show them, some for too long, beside consumers that take and wait."""

from collections.abc import Sequence
from typing import Any

from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import order
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    audit,
    checks,
    cramped,
    dequeue,
    drain,
    enqueue,
    line_left_empty,
    queue,
    values_of,
)

NAME = "holding"
SHOWING_S = (0.0, 0.01, 1.0, 12.0)


@workload(clients=2, steps=5, more=("version_changed",))
def holding(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)

    def produce(client: Client) -> None:
        for value in values_of(client, size.steps):
            enqueue(client, q, NAME, [value])
            client.pause(0.2)

    def consume(client: Client) -> None:
        for _ in range(size.steps):
            dequeue(client, q, NAME, client.random.choice((0, 0, 0.5, 5)))
            client.pause(0.2)
            audit(client, q, NAME)

    def read(client: Client) -> None:
        holder = q.holder(client.db)
        for _ in range(size.steps):
            held = holder.hold(client.random.randint(1, 3))
            if held:
                client.runtime.sleep(client.random.choice(SHOWING_S))
                settle(client, holder, held[: client.random.randint(0, len(held))])
            else:
                holder.wait(client.random.random())

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(consume, f"consumer-{number}")
        simulation.client(read, f"reader-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    steady = "die" not in simulation.faults.active
    more = [order(NAME, consumer="survivor"), line_left_empty(NAME)]
    return [*checks(NAME), *(more if steady else [])]


def settle(client: Client, holder: Holder, shown: list[Any]) -> None:
    """Dequeue the items that were shown; after the deadline they have gone back, and are shown again."""

    def body() -> list[Any]:
        return shown if holder.settle(len(shown)) else []

    client.call(NAME, "dequeue", len(shown), body)
