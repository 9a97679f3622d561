"""The delivery of a leased message: it is judged before a worker gets it, and acked when its task has ended.

Taskiq itself drops a message that it cannot read, and one of a task that it does not know. Here, these are
buried: `fdbqueue dead` shows them, and a kick sends them again.

The last worker of a *suspect* has died, and the message may have killed it. All messages of that worker come
back as suspects, and a worker runs one of them at a time, with no message in its hands that does not run yet.
So a message that kills its workers is soon alone with its deaths, and the others do not share its end.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from taskiq import AsyncBroker

from fdbqueue.aio.database import Database
from fdbqueue.aio.opened import Session
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import is_away
from fdbqueue.core.errors import NotTaken, QueueNotFound, TaskNotFound, UnknownSession
from fdbqueue.core.logger import logger, traceback_of
from fdbqueue.core.runtime import Event
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.visible import text_of
from fdbqueue.tasks.intake import Found
from fdbqueue.tasks.intake import Intake as BlockingIntake
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue

LEASE_OVER = (NotTaken, QueueNotFound, TaskNotFound, UnknownSession)
"""Errors of a verb whose lease has ended, or whose queue was dropped."""


class Leased(NamedTuple):
    queue: TaskQueue
    task: Task


class Intake:
    """The messages that a worker has leased and not asked for yet: few, as it may not run them soon."""

    def __init__(self, database: Database, batch: int) -> None:
        self._database = database
        self._batch = batch
        self._held: deque[Leased] = deque()
        self._intake = BlockingIntake[BlockingTaskQueue](database.blocking.runtime, {})

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
        database, hub = self._database.blocking, self._database.hub
        wanted, stop = {queue.blocking: self._batch for queue in queues}, database.runtime.event()

        def take(queue: BlockingTaskQueue, count: int, timeout_s: float, stop: Event) -> list[Task]:
            return queue.take_many(database, count, timeout_s, session=session.blocking, stop=stop)

        def hold(found: Found[BlockingTaskQueue]) -> None:
            self._held.extend(Leased(TaskQueue.over(queue, hub), task) for queue, task in found)

        # A cancelled call holds its messages, too: the end of the listener gives them back.
        taking = partial(self._intake.take, take, wanted, limits.WORKER_WAIT_S, stop)
        hold(await hub.call(taking, stop, hold))


ALONE_S = 5.0
"""Longest time for which a worker asks for no message after a suspect has begun."""

AWAY_S = 1.0
"""Seconds until a call is tried again after an outage of the database."""

SUSPECT_S = 60.0
"""Time for which no other suspect begins. A longer task should not keep them waiting."""

_log = logger("fdbqueue.taskiq")


class Delivery:
    def __init__(self, broker: AsyncBroker, orphaned_max: int) -> None:
        self._broker = broker
        self._orphaned_max = orphaned_max
        self._suspect: tuple[str, float, asyncio.Event] | None = None

    async def begins(self, database: Database, leased: Leased) -> bool:
        """True if a worker runs the message now. Otherwise it is put off for a moment, or buried."""
        failure = self._failure_of(leased)
        if failure is not None:
            _log.warning("message %s is buried: %s", _id_of(leased), failure.message)
        try:
            if failure is not None:
                await leased.queue.bury(database, leased.task, failure=failure)
            elif leased.task.orphaned and not self._may_begin(database, leased):
                runtime = database.blocking.runtime
                await leased.queue.give_back(
                    database, leased.task, delay=limits.SUSPECT_DELAY_S * (0.5 + runtime.random())
                )
            else:
                return True
        except LEASE_OVER:
            self._say_over(leased)
        return False

    def _may_begin(self, database: Database, leased: Leased) -> bool:
        """True if no other suspect runs. Then this one does."""
        now = database.blocking.runtime.monotonic()
        if self._suspect is not None and now - self._suspect[1] < SUSPECT_S:
            return False
        self._suspect = leased.task.id, now, asyncio.Event()
        return True

    async def until_no_suspect_begins(self) -> None:
        """Wait for the ack of the suspect that has begun, if there is one, for at most ALONE_S."""
        if self._suspect is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._suspect[2].wait(), ALONE_S)

    def _failure_of(self, leased: Leased) -> Failure | None:
        orphaned = leased.task.orphaned
        if orphaned >= self._orphaned_max:
            return Failure("WorkerLost", f"{orphaned} attempts in a row have lost their workers.")
        try:
            message = self._broker.formatter.loads(leased.task.data)
            message.parse_labels()
        except Exception as error:  # of any formatter
            return Failure(type(error).__name__, text_of(error), traceback_of(error, error.__traceback__))
        if self._broker.find_task(message.task_name) is None:
            return Failure("UnknownTask", f"No task {message.task_name!r} is registered in this worker.")
        return None

    async def ack(self, database: Database, leased: Leased) -> None:
        """End the lease. After a loss of the lease, the outcome of the next attempt counts. An outage of the
        database passes: without its ack, this worker would hold the message until its end.
        """
        while True:
            try:
                await leased.queue.ack(database, leased.task)
                break
            except LEASE_OVER:
                self._say_over(leased)
                break
            except Exception as error:
                if database.closed or not is_away(error):
                    raise
                await asyncio.sleep(AWAY_S)
        if self._suspect is not None and self._suspect[0] == leased.task.id:
            self._suspect[2].set()
            self._suspect = None

    def _say_over(self, leased: Leased) -> None:
        _log.warning("the lease of message %s was over before its end", _id_of(leased))


def _id_of(leased: Leased) -> str:
    return leased.task.headers.get("message", leased.task.id)
