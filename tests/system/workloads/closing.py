"""Machines that close their database while some of their threads wait in the line."""

from collections.abc import Sequence
from contextlib import suppress

from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import checks, cramped, dequeue, drain, enqueue, queue, values_of

NAME = "closing"


@workload(clients=2, steps=5)
def closing(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)

    def produce(client: Client) -> None:
        with suppress(DatabaseClosed):
            for value in values_of(client, size.steps):
                enqueue(client, q, NAME, [value])
                client.pause(0.5)

    def wait(client: Client) -> None:
        with suppress(DatabaseClosed):
            for _ in range(size.steps):
                dequeue(client, q, NAME, client.random.choice((0, 1, float("inf"))))

    def close_on_them(client: Client) -> None:
        threads = [client.thread(use, name) for name, use in (("a", wait), ("b", wait), ("c", produce))]
        client.runtime.sleep(scattered(client.random, 0.001, 4))
        client.db.close()
        for thread in threads:
            thread.join()

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(close_on_them, f"closer-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    return checks(NAME)
