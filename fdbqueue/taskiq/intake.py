"""Takes from several queues, as a worker asks for messages: it leases few that it cannot run yet."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from fdbqueue.aio.database import Database
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.aio.sessions import Session
from fdbqueue.errors import NotTaken, QueueNotFound, TaskNotFound, UnknownSession
from fdbqueue.task import Task

LEASE_OVER = (NotTaken, QueueNotFound, TaskNotFound, UnknownSession)
"""Errors of a verb whose lease has ended, or whose queue was dropped."""


class Leased(NamedTuple):
    queue: TaskQueue
    task: Task


class Intake:
    """The messages of one listener."""

    def __init__(self, database: Database, batch: int) -> None:
        self._database = database
        self._batch = batch
        self._held: deque[Leased] = deque()
        self._turn = 0

    async def next(self, queues: Sequence[TaskQueue], session: Session) -> Leased:
        """The next message of one of the queues; they have turns. Waits for ever. Raises: as a take."""
        while not self._held:
            await self._fetch(queues, session)
        return self._held.popleft()

    async def give_back(self) -> None:
        """Put back the messages that nothing has asked for: it counts no attempt."""
        while self._held:
            leased = self._held.popleft()
            with suppress(*LEASE_OVER):  # at the end of the session, all have come back
                await leased.queue.give_back(self._database, leased.task)

    def forget(self) -> None:
        """Drop the messages of a session that has ended: their leases are over."""
        self._held.clear()

    async def _fetch(self, queues: Sequence[TaskQueue], session: Session) -> None:
        if len(queues) == 1:
            await self._take(queues[0], session, None)
            return
        self._turn += 1
        for number in range(len(queues)):
            await self._take(queues[(number + self._turn) % len(queues)], session, 0)
            if self._held:
                return
        await self._wait(queues, session)

    async def _wait(self, queues: Sequence[TaskQueue], session: Session) -> None:
        """Wait in all queues. The first message ends the waits in the others; those that came, too, stay."""
        waits = [asyncio.ensure_future(self._take(queue, session, None)) for queue in queues]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            ended = await asyncio.gather(*waits, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception) and not self._held:
                raise error

    async def _take(self, queue: TaskQueue, session: Session, timeout_s: float | None) -> None:
        found = await queue.take_many(self._database, self._batch, timeout_s, session=session)
        self._held.extend(Leased(queue, task) for task in found)
