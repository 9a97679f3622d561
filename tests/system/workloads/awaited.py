"""The asynchronous face: coroutines of one loop, with calls that are cancelled by chance.

A cancelled dequeue takes nothing: an item that was delivered to it is given back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fdbqueue.aio.database import Transaction
from fdbqueue.aio.queues import Queue, TaskQueue
from fdbqueue.aio.transactional import transactional
from fdbqueue.aio.verbs import Session
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.task import Task
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, never_nothing, no_watch_left_behind, order, prompt
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.engine import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads import common, tasks
from tests.system.workloads.common import SPACE, checks, counted_and_found, cramped, drain, line_left_empty
from tests.system.workloads.stage import EFFECTS, Tasks, once_each, play
from tests.system.workloads.stage import counted_and_found as counted_tasks
from tests.system.workloads.tasks import NAME
from tests.system.workloads.waits import HARMLESS, PROMPT_S, TIMEOUTS_S

T = TypeVar("T")
Part = Callable[[LoopClient], Coroutine[Any, Any, object]]
AWAITED = "awaited"
IMPATIENT = 0.4
IDLE_S = 3.0


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
    """The plain queue on event loops: all roles on one loop, beside blocking clients."""
    cramped(simulation)
    q = Queue(SPACE[AWAITED])

    async def produce(client: LoopClient) -> None:
        for step in range(size.steps):
            await enqueue(client, q, AWAITED, [f"{client.name}.{step}"])
            await client.pause(0.05)

    async def consume(client: LoopClient) -> None:
        for _ in range(size.steps):
            await dequeue(client, q, AWAITED)
            await client.pause(0.05)

    async def watch_the_count(client: LoopClient) -> None:
        for _ in range(size.steps):
            await client.call(
                AWAITED, "audit", None, lambda: client.db.run(counted_and_found(q.blocking, AWAITED))
            )
            await client.pause(0.1)

    async def serve(client: LoopClient) -> None:
        await all_of(client, produce, consume, consume, watch_the_count)

    def consume_by_blocking(client: Client) -> None:
        blocking = common.queue(AWAITED)
        for _ in range(size.steps):
            common.dequeue(client, blocking, AWAITED)
            client.pause(0.05)

    for number in range(size.clients):
        simulation.client(serve, f"service-{number}")
        simulation.client(consume_by_blocking, f"consumer-{number}")
    simulation.afterwards(drain(AWAITED), "survivor")
    steady = not {"die", "stall"} & set(simulation.faults.active)
    more = [never_nothing(AWAITED), order(AWAITED, 6 * size.clients), order(AWAITED, consumer="survivor")]
    return [*checks(AWAITED), *(more if steady else [])]


@workload(clients=2, steps=4)
def awaited_waits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Dequeues of many coroutines on one loop that time out, are cancelled, or are served."""
    cramped(simulation)
    q = Queue(SPACE[AWAITED])
    haste = scattered(simulation.random, 0.01, 1)
    impatient = simulation.random.random() < 0.6

    async def produce(client: LoopClient) -> None:
        for step in range(size.steps):
            await client.pause(2.0)
            count = client.random.choice((1, 1, 3))
            await enqueue(client, q, AWAITED, [f"{client.name}.{step}.{part}" for part in range(count)])

    async def consume(client: LoopClient) -> None:
        for _ in range(size.steps):
            call = dequeue(client, q, AWAITED, client.random.choice(TIMEOUTS_S) * haste)
            if impatient and client.random.random() < 0.7:
                await cancelled_after(patience_s(client), call, [])
            else:
                await call
            await client.pause(0.5)

    async def serve(client: LoopClient) -> None:
        await all_of(client, produce, consume, consume, consume)

    def consume_by_blocking(client: Client) -> None:
        blocking = common.queue(AWAITED)
        for _ in range(size.steps):
            common.dequeue(client, blocking, AWAITED, client.random.choice(TIMEOUTS_S) * haste)
            client.pause(0.5)

    for number in range(size.clients):
        simulation.client(serve, f"service-{number}")
        simulation.client(consume_by_blocking, f"consumer-{number}")
    simulation.afterwards(drain(AWAITED), "survivor")
    return [*checks(AWAITED), *_more(set(simulation.faults.active), impatient)]


def _more(active: set[str], impatient: bool) -> Iterator[Checker]:
    if active <= HARMLESS and not impatient:
        yield prompt(AWAITED, PROMPT_S)
    # Two dequeues that are cancelled together may give their items back in the other order.
    if "die" not in active and not impatient:
        yield order(AWAITED, consumer="survivor")
    if "die" not in active:
        yield line_left_empty(AWAITED)


@workload(clients=2, steps=3)
def awaited_tasks(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A task queue on event loops: takes, verbs and loops, cancelled at any moment; effects beside acks."""
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)

    async def produce(client: LoopClient) -> None:
        q = await opened(client)
        for step in range(size.steps):
            value, delay = f"{client.name}.{step}", client.random.choice((0, 0, 0.5))
            await client.call(NAME, "put", value, partial(q.put, client.db, value, delay=delay))
            await client.pause(0.2)

    async def work(client: LoopClient) -> None:
        q = await opened(client)
        with suppress(UnknownSession):  # it stalled, so its session died
            async with Session(client.db, ttr=3) as session:
                for _ in range(size.steps):
                    await perhaps_cancelled(client, once(client, q, session))

    async def iterate(client: LoopClient) -> None:
        q = await opened(client)
        with suppress(NotTaken, UnknownSession):
            async with q.consume(client.db, client.random.choice((0, IDLE_S))) as found:
                async for task in found:
                    await client.pause(0.5)
                    if not await perhaps_cancelled(client, finish(client, q, task)):
                        break  # so it is released, unless the cancelled call has ended it

    async def look(client: LoopClient) -> None:
        q = await opened(client)
        for _ in range(size.steps):
            await client.call(NAME, "audit", None, lambda: client.db.run(partial(counted_tasks, q.blocking)))
            await client.pause(0.5)

    async def serve(client: LoopClient) -> None:
        await all_of(client, produce, work, work, iterate, look)

    survivor = Tasks(NAME, ttr=2).outliving(tasks.finish)
    play(simulation, size, {"service-": serve}, {"survivor": survivor})
    return [exact_statistics(NAME), partial(once_each, NAME), no_watch_left_behind]


async def opened(client: LoopClient) -> TaskQueue:
    return await TaskQueue.create(client.db, NAME, "fifottl", ttr=2, if_not_exists=True)


async def perhaps_cancelled(client: LoopClient, call: Coroutine[Any, Any, bool]) -> bool:
    """True if the call has ended; false if it was cancelled."""
    if client.random.random() < IMPATIENT:
        return await cancelled_after(patience_s(client), call, False)
    return await call


async def once(client: LoopClient, q: TaskQueue, session: Session) -> bool:
    """Take a task, if there is one, and call one method with it, by chance."""
    task = await q.take(client.db, client.random.choice((0, 1, 3)), session=session)
    if task is None:
        return True
    await client.pause(0.5)
    does: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        partial(finish, client, q, task),
        partial(finish, client, q, task),
        partial(q.release, client.db, task, delay=client.random.choice((0, 0.5))),
        partial(q.touch, client.db, task, 1),
        partial(q.bury, client.db, task),
        partial(q.kick, client.db, 2),
    ]
    with suppress(NotTaken):  # too late: another session has the lease
        await client.random.choice(does)()
    return True


async def finish(client: LoopClient, q: TaskQueue, task: Task) -> bool:
    @transactional
    async def body(tr: Transaction) -> None:
        # Only the latest lease may end a task; another one is recorded like two effects.
        latest = (await q.ack(tr, task)).attempts == task.attempts
        tr.add(EFFECTS + task.data.encode(), b"\x01" if latest else b"\x02")

    with suppress(NotTaken):
        await client.call(NAME, "finish", task.data, lambda: body(client.db))
    return True
