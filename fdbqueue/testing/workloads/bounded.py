"""A task queue that is full most of the time: many producers, few workers, an auditor of the capacity."""

from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.database import Database
from fdbqueue.errors import NotTaken, QueueFull
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from fdbqueue.testing.workloads import Size, workload

NAME = "bounded"


@workload(clients=4, steps=5)
def bounded(simulation: Simulation, size: Size) -> Sequence[Checker]:
    capacity = simulation.random.choice((2, 4, 8, 12))

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(client.db, NAME, "limfifottl", capacity=capacity, if_not_exists=True)

    def produce(client: Client) -> None:
        q = opened(client)
        for step in range(size.steps):
            wanted = client.random.choice((1, 1, 2))
            try:
                q.put_many(client.db, [step] * wanted, timeout=client.random.choice((0, 0, 1)))
            except QueueFull:
                client.pause(0.1)

    def work(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            task = q.take(client.db, 1)
            try:
                if task is not None:
                    q.ack(client.db, task)
            except NotTaken:
                client.pause(0.1)

    def look(client: Client) -> None:
        q = opened(client)
        for _ in range(4 * size.steps):
            client.call(NAME, "audit", None, partial(total, q, client))
            client.runtime.sleep(0.05)

    def within_capacity(trace: Trace, _: Database) -> Iterator[str]:
        for op in trace.of(NAME, "audit"):
            if op.done and op.result > capacity:
                yield f"{op.result} tasks in a queue for {capacity}"

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
    simulation.client(work, "worker")
    simulation.client(look, "auditor")
    simulation.afterwards(look, "last look")
    return [within_capacity]


def total(q: TaskQueue, client: Client) -> int:
    return q.statistics(client.db)["tasks"]["total"]
