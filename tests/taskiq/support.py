"""A broker of its own for a test, and a worker of Taskiq in the loop of the test."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from taskiq.receiver import Receiver

from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueResults
from tests.support import PATIENCE_S


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


@asynccontextmanager
async def started(url: Any, **options: Any) -> AsyncIterator[FdbQueueBroker]:
    """A started broker with results; its queues have names of their own."""
    broker = FdbQueueBroker(url, namespace=f"taskiq-{os.urandom(4).hex()}", **options)
    broker.with_result_backend(FdbQueueResults(broker))
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: FdbQueueBroker, **options: Any) -> AsyncIterator[None]:
    """A worker that runs until the block is left, and ends as after SIGTERM."""
    finish = asyncio.Event()
    options = {"max_async_tasks": 4, "run_startup": False} | options
    listening = asyncio.create_task(Receiver(broker, **options).listen(finish))
    try:
        yield
    finally:
        finish.set()
        await listening


async def counts(broker: FdbQueueBroker, queue_name: str | None = None) -> dict[str, int]:
    queue = await broker.task_queue(queue_name)
    return (await queue.statistics(await broker.database()))["tasks"]
