"""The delivery of a leased message: it is read before a worker gets it, and acked when its task has ended.

Taskiq itself drops a message that it cannot read, and one of a task that it does not know. Here, these are
buried: `fdbqueue dead` shows them, and a kick sends them again.
"""

import asyncio

from taskiq import AsyncBroker

from fdbqueue.aio.database import Database
from fdbqueue.database import is_away
from fdbqueue.errors import NotTaken, QueueNotFound, TaskNotFound, UnknownSession
from fdbqueue.logger import logger
from fdbqueue.task import Failure
from fdbqueue.taskiq.intake import Leased
from fdbqueue.trouble import text_of, traceback_of

_log = logger("fdbqueue.taskiq")
_LOST = (NotTaken, QueueNotFound, TaskNotFound, UnknownSession)
_AWAY_S = 1.0
"""Seconds until an ack is tried again after an outage of the database."""


class Delivery:
    def __init__(self, broker: AsyncBroker, orphaned_max: int) -> None:
        self._broker = broker
        self._orphaned_max = orphaned_max

    async def is_readable(self, database: Database, leased: Leased) -> bool:
        """True if a worker can run the message; otherwise it is buried."""
        failure = self._failure_of(leased)
        if failure is None:
            return True
        _log.warning("message %s is buried: %s", _id_of(leased), failure.message)
        try:
            await leased.queue.bury(database, leased.task, failure=failure)
        except _LOST:
            _log.warning("the lease of message %s was over before its end", _id_of(leased))
        return False

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
        """End the lease. After a loss of the lease, the outcome of the next attempt counts.

        An outage of the database passes: without its ack, this worker would hold the message until its end.
        """
        while True:
            try:
                await leased.queue.ack(database, leased.task)
                return
            except _LOST:
                _log.warning("the lease of message %s was over before its end", _id_of(leased))
                return
            except Exception as error:
                if database.closed or not is_away(error):
                    raise
                await asyncio.sleep(_AWAY_S)


def _id_of(leased: Leased) -> str:
    return leased.task.headers.get("message", leased.task.id)
