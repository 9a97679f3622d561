"""enqueue_many and dequeue_many, several at once, with a payload that is split now and then."""

from collections.abc import Sequence
from typing import Any

from fdbqueue.core import limits
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import order
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    audit,
    checks,
    cramped,
    dequeue,
    dequeue_within,
    drain,
    either,
    enqueue,
)

NAME = "batches"


@workload(clients=2, steps=4, wide=("BATCH_BYTES_MAX",))
def batches(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)

    large = "x" * (limits.PAYLOAD_PIECE_BYTES_MAX + 10)

    def produce(client: Client) -> None:
        q = either(client, NAME)
        for step in range(size.steps):
            count = client.random.choice((1, 2, 5, 9))
            values = [f"{client.name}.{step}.{number}" for number in range(count)]
            if client.random.random() < 0.1:
                values.append(f"{client.name}.{step}.{large}")
            enqueue(client, q, NAME, values)
            client.pause(0.05)

    def consume(client: Client) -> None:
        q = either(client, NAME)
        for _ in range(size.steps):
            dequeue_many(client, q, client.random.choice((1, 3, 10)))
            client.pause(0.05)

    def take_within(client: Client) -> None:
        q = either(client, NAME)
        for _ in range(size.steps):
            dequeue_within(client, q, NAME, client.random.choice((1, 3, 6)), client.random.choice((0, 0, 2)))
            client.pause(0.05)

    def mixed(client: Client) -> None:
        threads = [client.thread(consume, "a"), client.thread(produce, "b"), client.thread(single, "c")]
        for thread in threads:
            thread.join()

    def single(client: Client) -> None:
        q = either(client, NAME)
        for _ in range(size.steps):
            dequeue(client, q, NAME, client.random.choice((0, 1)))
            audit(client, q, NAME)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(consume, f"consumer-{number}")
    simulation.client(mixed, "both")
    simulation.client(take_within, "caller")
    simulation.afterwards(drain(NAME), "survivor")
    steady = not {"die", "stall"} & set(simulation.faults.active)
    return [*checks(NAME), *([order(NAME, 60), order(NAME, consumer="survivor")] if steady else [])]


def dequeue_many(client: Client, q: Queue, count: int) -> list[Any]:
    return client.call(NAME, "dequeue", count, lambda: q.dequeue_many(client.db, count))
