"""A task queue near its capacity, with and without partitions: batches that are put at the same moment, and
room for several at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, QueueFull
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.stage import Tasks, play, taken, total

NAME = "bounded"
EVERY_S = 0.1
"""In half of the runs, all producers put at multiples of this time."""


@workload(clients=4, steps=5)
def bounded(simulation: Simulation, size: Size) -> Sequence[Checker]:
    capacity = simulation.random.choice((2, 4, 8, 12))
    together = simulation.random.random() < 0.5
    batches = simulation.random.choice(((1,), (1, 1, 2), (2, 4), (1, 4)))
    partitions = Random(f"{simulation.seed} partitions").choice((1, 1, 2, 3))
    queue = Tasks(NAME, "limfifottl", capacity=capacity, partitions=partitions)

    def produce(client: Client, q: TaskQueue) -> None:
        for step in range(2 * size.steps):
            if together:
                client.runtime.sleep(EVERY_S - client.runtime.monotonic() % EVERY_S)
            wanted = client.random.choice(batches)
            try:
                q.put_many(client.db, [step] * wanted, timeout=client.random.choice((0, 0, 1)))
            except QueueFull:
                client.pause(0.1)
            count(client, q)

    def work(client: Client, q: TaskQueue) -> None:
        """Make room for one task, or for several in one transaction: then puts meet far below the bound."""
        if client.random.random() < 0.5:
            q.truncate_some(client.db, client.random.randint(1, capacity))
        else:
            finish(client, q)

    def look(client: Client, q: TaskQueue) -> None:
        count(client, q)
        client.runtime.sleep(0.05)

    def within_capacity(trace: Trace, _: Database) -> Iterator[str]:
        for op in trace.of(NAME, "audit"):
            if op.done and op.result > capacity:
                yield f"{op.result} tasks in a queue for {capacity}"

    auditor = queue.repeating(4 * size.steps, look)
    roles = {
        "producer-": queue.using(produce),
        "worker": queue.repeating(2 * size.steps, work, 0.1),
        "auditor": auditor,
    }
    play(simulation, size, roles, {"last look": auditor})
    return [within_capacity]


def finish(client: Client, q: TaskQueue) -> None:
    task = taken(client, q, 1)
    if task is not None:
        with suppress(NotTaken):
            q.ack(client.db, task)


def count(client: Client, q: TaskQueue) -> None:
    client.call(NAME, "audit", None, partial(total, q, client.db))
