"""Machines of many threads: their enqueues, their takes and their waits combine, each of its kind."""

from collections.abc import Sequence
from functools import partial

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import order
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    checks,
    cramped,
    dequeue,
    drain,
    enqueue,
    line_left_empty,
    queue,
)

NAME = "combined"
THREADS = 3


@workload(clients=2, steps=3)
def combined(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)
    patience_s = scattered(simulation.random, 0.005, 4)

    def produce(client: Client, thread: int) -> None:
        for step in range(size.steps):
            enqueue(client, q, NAME, [f"{client.name}.{thread}.{step}"])
            client.pause(0.2)

    def consume(client: Client) -> None:
        for _ in range(size.steps):
            dequeue(client, q, NAME, client.random.choice((0, patience_s)))
            client.pause(0.2)

    def everything(client: Client) -> None:
        threads = [
            client.thread(work, f"{name}-{number}")
            for number in range(THREADS)
            for name, work in (("consumer", consume), ("producer", partial(produce, thread=number)))
        ]
        for thread in threads:
            thread.join()

    for number in range(size.clients):
        simulation.client(everything, f"machine-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    steady = "die" not in simulation.faults.active
    return [*checks(NAME), *([line_left_empty(NAME), order(NAME, consumer="survivor")] if steady else [])]
