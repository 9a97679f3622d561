"""The plain queue on event loops: producers, consumers and auditors of one loop, beside blocking clients."""

from collections.abc import Sequence

from fdbqueue.aio.queues import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, order
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads import common
from tests.system.workloads.awaited import all_of, dequeue, enqueue
from tests.system.workloads.common import SPACE, checks, counted_and_found, cramped, drain

NAME = "awaited"


@workload(clients=2, steps=4)
def awaited_recipe(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = Queue(SPACE[NAME])

    async def produce(client: LoopClient) -> None:
        for step in range(size.steps):
            await enqueue(client, q, NAME, [f"{client.name}.{step}"])
            await client.pause(0.05)

    async def consume(client: LoopClient) -> None:
        for _ in range(size.steps):
            await dequeue(client, q, NAME)
            await client.pause(0.05)

    async def watch_the_count(client: LoopClient) -> None:
        for _ in range(size.steps):
            await client.call(NAME, "audit", None, lambda: client.db.run(counted_and_found(q.blocking, NAME)))
            await client.pause(0.1)

    async def serve(client: LoopClient) -> None:
        await all_of(client, produce, consume, consume, watch_the_count)

    def consume_by_blocking(client: Client) -> None:
        blocking = common.queue(NAME)
        for _ in range(size.steps):
            common.dequeue(client, blocking, NAME)
            client.pause(0.05)

    for number in range(size.clients):
        simulation.client(serve, f"service-{number}")
        simulation.client(consume_by_blocking, f"consumer-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    steady = not {"die", "stall"} & set(simulation.faults.active)
    more = [never_nothing(NAME), order(NAME, 6 * size.clients), order(NAME, consumer="survivor")]
    return [*checks(NAME), *(more if steady else [])]
