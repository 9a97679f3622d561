"""Waiting dequeues of many coroutines on one loop: they time out, are cancelled at any moment, or are served.

A cancelled dequeue takes nothing: an item that was delivered to it is given back.
"""

from collections.abc import Iterator, Sequence

from fdbqueue.aio.queues import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import order, prompt
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads import common
from tests.system.workloads.awaited import all_of, cancelled_after, dequeue, enqueue, patience_s
from tests.system.workloads.common import SPACE, checks, cramped, drain, line_left_empty
from tests.system.workloads.waits import HARMLESS, PROMPT_S, TIMEOUTS_S

NAME = "awaited"


@workload(clients=2, steps=4)
def awaited_waits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = Queue(SPACE[NAME])
    haste = scattered(simulation.random, 0.01, 1)
    impatient = simulation.random.random() < 0.6

    async def produce(client: LoopClient) -> None:
        for step in range(size.steps):
            await client.pause(2.0)
            count = client.random.choice((1, 1, 3))
            await enqueue(client, q, NAME, [f"{client.name}.{step}.{part}" for part in range(count)])

    async def consume(client: LoopClient) -> None:
        for _ in range(size.steps):
            call = dequeue(client, q, NAME, client.random.choice(TIMEOUTS_S) * haste)
            if impatient and client.random.random() < 0.7:
                await cancelled_after(patience_s(client), call, [])
            else:
                await call
            await client.pause(0.5)

    async def serve(client: LoopClient) -> None:
        await all_of(client, produce, consume, consume, consume)

    def consume_by_blocking(client: Client) -> None:
        blocking = common.queue(NAME)
        for _ in range(size.steps):
            common.dequeue(client, blocking, NAME, client.random.choice(TIMEOUTS_S) * haste)
            client.pause(0.5)

    for number in range(size.clients):
        simulation.client(serve, f"service-{number}")
        simulation.client(consume_by_blocking, f"consumer-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    return [*checks(NAME), *_more(set(simulation.faults.active), impatient)]


def _more(active: set[str], impatient: bool) -> Iterator[Checker]:
    if active <= HARMLESS and not impatient:
        yield prompt(NAME, PROMPT_S)
    # Two dequeues that are cancelled together may give their items back in the other order.
    if "die" not in active and not impatient:
        yield order(NAME, consumer="survivor")
    if "die" not in active:
        yield line_left_empty(NAME)
