"""The common parts of workloads on the asynchronous face: calls that are cancelled, by chance.

A cancelled dequeue takes nothing: an item that was delivered to it is given back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from fdbqueue.aio.queues import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, order, prompt
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads import common
from tests.system.workloads.common import SPACE, checks, counted_and_found, cramped, drain, line_left_empty
from tests.system.workloads.waits import HARMLESS, PROMPT_S, TIMEOUTS_S

T = TypeVar("T")
Part = Callable[[LoopClient], Coroutine[Any, Any, object]]
NAME = "awaited"


async def all_of(client: LoopClient, *parts: Part) -> None:
    """Run coroutine functions side by side, in tasks of one loop."""
    tasks = [client.task(part, f"{part.__name__}-{number}") for number, part in enumerate(parts)]
    for task in tasks:
        await task


async def cancelled_after(patience_s: float, call: Awaitable[T], otherwise: T) -> T:
    """Await `call`; if it has not ended after `patience_s`, cancel it and return `otherwise`."""
    try:
        async with asyncio.timeout(patience_s):
            return await call
    except TimeoutError:
        return otherwise


def patience_s(client: LoopClient) -> float:
    """Return a time in which a call may be at its start, in the line, in a commit, or ended."""
    return scattered(client.random, 0.0005, 3)


async def enqueue(client: LoopClient, q: Queue, name: str, values: Sequence[Any]) -> None:
    await client.call(name, "enqueue", list(values), lambda: q.enqueue_many(client.db, values))


async def dequeue(client: LoopClient, q: Queue, name: str, timeout_s: float = 0) -> list[Any]:
    """Return the dequeued value in a list, or an empty list."""

    async def body() -> list[Any]:
        value = await q.dequeue(client.db, timeout=timeout_s)
        return [] if value is None else [value]

    return await client.call(name, "dequeue", 1, body)


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
