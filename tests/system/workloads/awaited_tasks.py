"""A task queue on event loops: takes, verbs and loops, cancelled at any moment; effects beside acks."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.aio.opened import Session
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.transactional import transactional
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.task import Task
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads import tasks
from tests.system.workloads.awaited import all_of, cancelled_after, patience_s
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import EFFECTS, Tasks, counted_and_found, once_each, play
from tests.system.workloads.tasks import NAME

IMPATIENT = 0.4
IDLE_S = 3.0


@workload(clients=2, steps=3)
def awaited_tasks(simulation: Simulation, size: Size) -> Sequence[Checker]:
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
            await client.call(
                NAME, "audit", None, lambda: client.db.run(partial(counted_and_found, q.blocking))
            )
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
