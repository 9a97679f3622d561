"""A pytest plugin for Taskiq's own tests: our broker has the faces of the two brokers that they use."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import taskiq
import taskiq.brokers.inmemory_broker
import tests.utils  # that of Taskiq
from taskiq import BrokerMessage
from taskiq.exceptions import UnknownTaskError
from taskiq.receiver import Receiver
from taskiq.serializers import PickleSerializer

from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueResults


class AtOnce(FdbQueueBroker):
    """Our broker and results, with a worker on the loop of the sender that takes each message at once."""

    def __init__(
        self,
        sync_tasks_pool_size: int = 4,
        cast_types: bool = True,
        await_inplace: bool = False,
        **options: Any,
    ) -> None:
        super().__init__("memory:", batch=1)
        self.with_result_backend(FdbQueueResults(self, serializer=PickleSerializer()))
        executor = ThreadPoolExecutor(sync_tasks_pool_size)
        self.receiver = Receiver(self, executor, validate_params=cast_types, **options)
        self.await_inplace = await_inplace
        self._running_tasks: set[asyncio.Task[None]] = set()

    async def kick(self, message: BrokerMessage) -> None:
        if self.find_task(message.task_name) is None:
            raise UnknownTaskError(task_name=message.task_name)
        await super().kick(message)
        running = asyncio.create_task(self._run_next())
        self._running_tasks.add(running)
        running.add_done_callback(self._running_tasks.discard)
        if self.await_inplace:
            await running

    async def _run_next(self) -> None:
        listening = self.listen()
        try:
            await self.receiver.callback(await anext(listening))
        finally:
            await listening.aclose()

    async def wait_all(self) -> None:
        await asyncio.gather(*self._running_tasks)


class Queued(FdbQueueBroker):
    """Our broker, with the queue that a test reads, or waits for."""

    def __init__(self) -> None:
        super().__init__("memory:")
        self.queue = self

    async def get(self) -> bytes:
        queue, database = await self.task_queue(), await self.database()
        task = await queue.take(database, None)
        assert task is not None
        await queue.ack(database, task)
        data: bytes = task.data
        return data

    async def wait_tasks(self) -> None:
        queue, database = await self.task_queue(), await self.database()
        while (counts := (await queue.statistics(database))["tasks"])["ready"] + counts["taken"]:
            await asyncio.sleep(0.01)


taskiq.InMemoryBroker = taskiq.brokers.inmemory_broker.InMemoryBroker = AtOnce  # type: ignore[assignment, misc]
tests.utils.AsyncQueueBroker = Queued
