"""One consumer that takes in every way, many producers: strictly first in, first out."""

from collections.abc import Callable, Sequence

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing
from fdbqueue.testing.checkers import order as in_order
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    checks,
    cramped,
    dequeue,
    dequeue_and_give_back,
    dequeue_within,
    drain,
    enqueue,
    queue,
    values_of,
)

NAME = "order"


@workload(clients=3, steps=5, never=("die", "stall"))
def order(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)

    takes: Sequence[Callable[[Client], object]] = (
        lambda client: dequeue(client, q, NAME, client.random.choice((0, 0.5, 5))),
        lambda client: dequeue(client, q, NAME, client.random.choice((0, 0.5, 5))),
        lambda client: dequeue_within(client, q, NAME, client.random.choice((1, 3))),
        lambda client: dequeue_within(client, q, NAME, 1, back=2),
        lambda client: dequeue_and_give_back(client, q, NAME, 1, back=2),
    )

    def produce(client: Client) -> None:
        for value in values_of(client, size.steps):
            enqueue(client, q, NAME, [value])
            client.pause(0.2)

    def consume(client: Client) -> None:
        for _ in range(size.steps * size.clients):
            client.random.choice(takes)(client)
            client.pause(0.05)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
    simulation.client(consume, "consumer")
    simulation.afterwards(drain(NAME), "survivor")
    return [*checks(NAME), in_order(NAME), never_nothing(NAME)]
