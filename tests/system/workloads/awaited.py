"""The common parts of workloads on the asynchronous face: calls that are cancelled, by chance."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fdbqueue.aio.queues import Queue
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.faults import scattered

T = TypeVar("T")

Part = Callable[[LoopClient], Coroutine[Any, Any, object]]


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
