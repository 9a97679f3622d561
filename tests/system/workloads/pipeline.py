"""Stages: user transactions that dequeue from one queue and enqueue into the next, beside direct callers."""

from collections.abc import Sequence
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    audit,
    checks,
    cramped,
    dequeue,
    drain,
    either,
    enqueue,
    queue,
    values_of,
)

FIRST, SECOND = "orders", "emails"


@workload(clients=2, steps=5)
def pipeline(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    first, second = queue(FIRST), queue(SECOND)

    def produce(client: Client) -> None:
        for value in values_of(client, size.steps):
            enqueue(client, first, FIRST, [value])
            client.pause(0.05)

    def move_one(tr: Any) -> None:
        # After an unknown result it may run twice, but each run is atomic.
        value = first.dequeue(tr)
        if value is not None:
            second.enqueue(tr, value)

    def move(client: Client) -> None:
        for _ in range(size.steps):
            client.call(FIRST, "move", SECOND, lambda: run(client.db, move_one))
            client.pause(0.05)

    def consume(client: Client) -> None:
        q = either(client, SECOND)
        for _ in range(size.steps):
            dequeue(client, q, SECOND, client.random.choice((0, 0, 2)))
            client.pause(0.05)

    def consume_the_first_too(client: Client) -> None:
        q = either(client, FIRST)
        for _ in range(size.steps // 2):
            dequeue(client, q, FIRST)
            audit(client, first, FIRST)
            audit(client, second, SECOND)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(move, f"mover-{number}")
        simulation.client(consume, f"consumer-{number}")
    simulation.client(consume_the_first_too, "bystander")
    simulation.afterwards(drain(FIRST), "survivor-1")
    simulation.afterwards(drain(SECOND), "survivor-2")
    return checks(FIRST, SECOND)
