"""The plain queue: producers, and consumers of both kinds (in the line, and simple) that never wait."""

from collections.abc import Sequence

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, order
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    audit,
    checks,
    cramped,
    dequeue,
    drain,
    either,
    enqueue,
    values_of,
)

NAME = "recipe"


@workload(clients=3, steps=4)
def recipe(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)

    def produce(client: Client) -> None:
        q = either(client, NAME)
        for value in values_of(client, size.steps):
            enqueue(client, q, NAME, [value])
            client.pause(0.05)

    def consume(client: Client) -> None:
        q = either(client, NAME)
        for _ in range(size.steps):
            dequeue(client, q, NAME)
            client.pause(0.05)

    def consume_by_two(client: Client) -> None:
        threads = [client.thread(consume, name) for name in ("a", "b")]
        for thread in threads:
            thread.join()

    def watch_the_count(client: Client) -> None:
        q = either(client, NAME)
        for _ in range(size.steps):
            audit(client, q, NAME)
            client.pause(0.1)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(consume_by_two if number % 3 == 1 else consume, f"consumer-{number}")
    simulation.client(watch_the_count, "auditor")
    simulation.afterwards(drain(NAME), "survivor")
    steady = not {"die", "stall"} & set(simulation.faults.active)
    more = [never_nothing(NAME), order(NAME, 4 * size.clients), order(NAME, consumer="survivor")]
    return [*checks(NAME), *(more if steady else [])]
