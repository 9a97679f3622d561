"""The database of a broker: opened at its first use on an event loop, and closed with the broker.

Beside it: the task queues of the broker, and the labels of a message that tell its queue, its delay and its
priority: those of taskiq-aio-pika.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from taskiq import BrokerMessage

from fdbqueue.aio import open as open_database
from fdbqueue.aio.database import Database
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.core.database import require_answer
from fdbqueue.core.errors import InvalidArgument, QueueNotFound
from fdbqueue.core.open import checked_url, require_known
from fdbqueue.integrations.common.queue_map import PRIORITY_MAX, QueueMap

ANSWER_S = 5.0
"""Time that a cluster has to answer a new connection."""


@runtime_checkable
class Connected(Protocol):
    """A broker: its backends use its database."""

    @property
    def connection(self) -> "Connection": ...


Place = str | Database | None
"""A URL for `fdbqueue.open`, an open database, or None for the database of the environment."""


class Connection:
    def __init__(self, place: Place) -> None:
        self._place = place if isinstance(place, Database) else _checked(place)
        self._opened: dict[asyncio.AbstractEventLoop, asyncio.Task[Database]] = {}

    async def database(self) -> Database:
        """The open database of the running loop. Raises: as fdbqueue.open; DatabaseNotFound."""
        if isinstance(self._place, Database):
            return self._place
        loop = asyncio.get_running_loop()
        opening = self._opened.get(loop)
        if opening is None:
            for ended in [other for other in self._opened if other.is_closed()]:
                del self._opened[ended]
            opening = self._opened[loop] = loop.create_task(_open(self._place))
        try:
            return await asyncio.shield(opening)  # it may be that of other callers, too
        finally:
            if opening.done() and (opening.cancelled() or opening.exception()):
                self._opened.pop(loop, None)

    async def close(self) -> None:
        """Close the database that was opened on this loop. The next use opens it again."""
        opening = self._opened.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()


def connection_of(place: Place | Connected) -> tuple[Connection, bool]:
    """The connection of a broker, or a new one; True if it is new, and has to be closed."""
    if isinstance(place, Connected):
        return place.connection, False
    return Connection(place), True


def _checked(url: str | None) -> str | None:
    """The variables of the environment are read when the database is opened. Raises: UnknownUrl."""
    if url is not None:
        require_known(checked_url(url, False))
    return url


async def _open(url: str | None) -> Database:
    database = await open_database(url)
    try:
        await database.run_blocking(lambda db: require_answer(db, url or "", ANSWER_S))
    except BaseException:
        await database.close()
        raise
    return database


T = TypeVar("T")


class TaskQueues:
    """Handles by the names that Taskiq knows. A queue `mails` is the task queue `taskiq.mails`."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._maps: dict[Database, QueueMap] = {}

    async def named(self, name: str) -> TaskQueue:
        database = await self._connection.database()
        queues = self._maps.get(database)
        if queues is None:
            queues = self._maps[database] = QueueMap(lambda: database.blocking, self._namespace, "bytes")
        return TaskQueue.over(await database.run_blocking(lambda _: queues.made(name)), database.hub)

    async def use(self, name: str, verb: Callable[[TaskQueue], Awaitable[T]]) -> T:
        """Call `verb` with the queue. One that was dropped meanwhile is made again."""
        try:
            return await verb(await self.named(name))
        except QueueNotFound:
            self.forget()
            return await verb(await self.named(name))

    def forget(self) -> None:
        """Open the queues again at their next use."""
        self._maps.clear()


QUEUE_NAME, DELAY, PRIORITY = "queue_name", "delay", "priority"


def queue_name_of(labels: Mapping[str, Any], default: str) -> str:
    return str(labels.get(QUEUE_NAME) or default)


def put_options(message: BrokerMessage) -> dict[str, Any]:
    """`pri`, `delay` and headers of a message. Raises: InvalidArgument."""
    return {
        "pri": PRIORITY_MAX - priority_of(message.labels),
        "delay": delay_s_of(message.labels),
        "headers": {"task": message.task_name, "message": message.task_id},
    }


def priority_of(labels: Mapping[str, Any]) -> int:
    given = labels.get(PRIORITY)
    found = _number(PRIORITY, given)
    if found != int(found) or not 0 <= found <= PRIORITY_MAX:
        raise InvalidArgument(name=PRIORITY, wanted=f"a whole number from 0 to {PRIORITY_MAX}", got=given)
    return int(found)


def delay_s_of(labels: Mapping[str, Any]) -> float:
    return max(0.0, _number(DELAY, labels.get(DELAY)))


def _number(name: str, given: Any) -> float:
    """The number in a label; labels of a sent message are texts. 0 for none."""
    try:
        found = float(given or 0)
    except (TypeError, ValueError):
        found = float("nan")
    if not abs(found) < float("inf"):
        raise InvalidArgument(name=name, wanted="a label with a number", got=given)
    return found
