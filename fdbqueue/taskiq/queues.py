"""The task queues behind the queues of Taskiq, made at their first use."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fdbqueue.aio.database import Database
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.errors import QueueNotFound
from fdbqueue.taskiq.connection import Connection

T = TypeVar("T")

KIND, CODEC = "fifottl", "bytes"
"""Priorities and delays; and the bytes that Taskiq's own formatter has made."""


class TaskQueues:
    """Handles by the names that Taskiq knows. A queue `mails` is the task queue `taskiq.mails`."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._known: dict[tuple[Database, str], TaskQueue] = {}

    async def named(self, name: str) -> TaskQueue:
        """Raises: QueueKindMismatch, InvalidArgument and others of TaskQueue.create."""
        database = await self._connection.database()
        queue = self._known.get((database, name))
        if queue is None:
            queue = self._known[database, name] = await TaskQueue.create(
                database, f"{self._namespace}.{name}", KIND, codec=CODEC, if_not_exists=True
            )
        return queue

    async def use(self, name: str, verb: Callable[[TaskQueue], Awaitable[T]]) -> T:
        """Call `verb` with the queue. One that was dropped meanwhile is made again."""
        try:
            return await verb(await self.named(name))
        except QueueNotFound:
            self.forget()
            return await verb(await self.named(name))

    def forget(self) -> None:
        """Open the queues again at their next use."""
        self._known.clear()
