"""A queue that one client clears while others enqueue, dequeue and wait."""

from collections.abc import Sequence

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
    in_batches,
    queue,
    values_of,
)

NAME = "clearing"


@workload(clients=3, steps=5)
def clearing(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)

    def produce(client: Client) -> None:
        q = either(client, NAME)
        for batch in in_batches(client, values_of(client, size.steps)):
            enqueue(client, q, NAME, batch)
            client.pause(0.3)

    def consume(client: Client) -> None:
        q = either(client, NAME)
        for _ in range(size.steps):
            dequeue(client, q, NAME, client.random.choice((0, 1, 5)))
            client.pause(0.05)

    def wait(client: Client) -> None:
        """Wait in the line; the clear finds some requests served, with results that are not collected."""
        for _ in range(size.steps):
            dequeue(client, queue(NAME), NAME, 1)

    def clear(client: Client) -> None:
        q = queue(NAME)
        for _ in range(3):
            client.pause(1.0)
            client.call(NAME, "clear", None, lambda: q.clear(client.db))
            audit(client, q, NAME)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(consume, f"consumer-{number}")
        simulation.client(wait, f"waiter-{number}")
    simulation.client(clear, "clearer")
    simulation.afterwards(drain(NAME), "survivor")
    return checks(NAME)
