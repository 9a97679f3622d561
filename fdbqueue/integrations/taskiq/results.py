"""The result backend: results and progress with an end, waited for by a watch.

So `await task.wait_result()` of a task of our broker polls nothing.

The database of a broker is opened at its first use on an event loop, and closed with the broker. Beside it:
the task queues of the broker, and the labels of a message that tell its queue, its delay and its priority:
those of taskiq-aio-pika.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel
from taskiq import AsyncResultBackend, AsyncTaskiqDecoratedTask, AsyncTaskiqTask, BrokerMessage, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError, TaskiqResultTimeoutError
from taskiq.kicker import AsyncKicker
from taskiq.serializers import JSONSerializer, PickleSerializer

from fdbqueue.aio import open as open_database
from fdbqueue.aio.database import Database
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.core.arguments import checked_span
from fdbqueue.core.database import require_answer
from fdbqueue.core.errors import InvalidArgument, QueueNotFound
from fdbqueue.core.open import checked_url, require_known
from fdbqueue.integrations.common import PRIORITY_MAX, QueueMap, Results

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


def dumped(model: BaseModel, serializer: TaskiqSerializer) -> bytes:
    """A model as bytes. All serializers but pickle get values that JSON has."""
    mode: Any = "python" if isinstance(serializer, PickleSerializer) else "json"
    return serializer.dumpb(model.model_dump(mode=mode))


R = TypeVar("R")

SPACE, PROGRESS_SPACE = "taskiq", "taskiq-progress"
TTL_S = 86_400.0


class ResultMissing(ResultGetError):
    """There is no result, or no more."""

    __template__ = "Task {task_id} has no result: it has not ended, or the result has"
    task_id: str


class FdbQueueResults(AsyncResultBackend[T]):
    """Results of tasks, for `broker.with_result_backend`."""

    def __init__(
        self,
        url: Place | Connected = None,
        *,
        ttl_s: float | None = TTL_S,
        keep_results: bool = True,
        serializer: TaskiqSerializer | None = None,
    ) -> None:
        """`url`: as in FdbQueueBroker, or the broker itself, whose database it then uses.

        `ttl_s`: seconds until a result ends, by default those of a day; None keeps it for ever. Without
        `keep_results`, the first reader removes the result, and no other one gets it. `serializer`: by
        default JSON.
        Raises: UnknownUrl, InvalidArgument.
        """
        self._connection, self._owns_it = connection_of(url)
        self._ttl_s = None if ttl_s is None else checked_span("ttl_s", ttl_s)
        self._keeps = keep_results
        self._serializer = JSONSerializer() if serializer is None else serializer

    async def startup(self) -> None:
        """Open the database. Raises: as fdbqueue.open; DatabaseNotFound."""
        await self._connection.database()

    async def shutdown(self) -> None:
        """Close the database, if it is not that of a broker."""
        if self._owns_it:
            await self._connection.close()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        """Store a result. Storing it twice is storing it once. Raises: PayloadTooLarge."""
        await self._store(SPACE, task_id, dumped(result, self._serializer))

    async def is_result_ready(self, task_id: str) -> bool:
        return await self._get(SPACE, task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """The result; with its log if `with_logs`. Raises: ResultMissing."""
        found = await (self._get if self._keeps else self._take)(SPACE, task_id)
        if found is None:
            raise ResultMissing(task_id=task_id)
        result: TaskiqResult[T] = TaskiqResult.model_validate(self._serializer.loadb(found))
        if not with_logs:
            result.log = None
        return result

    async def wait(self, task_id: str, timeout_s: float | None = None) -> bool:
        """Wait for a result on a watch, up to `timeout_s` seconds, None for ever. True if there is one."""
        found = await self._use(SPACE, lambda results: results.wait_for(task_id.encode(), timeout_s))
        return found is not None

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task; it ends as its result does. Raises: PayloadTooLarge."""
        await self._store(PROGRESS_SPACE, task_id, dumped(progress, self._serializer))

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        found = await self._get(PROGRESS_SPACE, task_id)
        if found is None:
            return None
        progress: TaskProgress[Any] = TaskProgress.model_validate(self._serializer.loadb(found))
        return progress

    async def _store(self, space: str, task_id: str, value: bytes) -> None:
        await self._use(space, lambda results: results.store(task_id.encode(), value, self._ttl_s))

    async def _get(self, space: str, task_id: str) -> bytes | None:
        return await self._use(space, lambda results: results.get([task_id.encode()])[0])

    async def _take(self, space: str, task_id: str) -> bytes | None:
        return await self._use(space, lambda results: results.take(task_id.encode()))

    async def _use(self, space: str, verb: Callable[[Results], R]) -> R:
        return await (await self._connection.database()).run_blocking(lambda db: verb(Results(db, space)))


P = ParamSpec("P")


class WatchedTask(AsyncTaskiqTask[T]):
    """A task that was sent."""

    async def wait_result(
        self, check_interval: float = 0.2, timeout: float = -1.0, with_logs: bool = False
    ) -> TaskiqResult[T]:
        """The result, as soon as there is one. Another result backend is asked every `check_interval`.

        Raises: TaskiqResultTimeoutError after `timeout` seconds, for ever if it is not positive.
        """
        if not isinstance(self.result_backend, FdbQueueResults):
            return await super().wait_result(check_interval, timeout, with_logs)
        if not await self.result_backend.wait(self.task_id, timeout if timeout > 0 else None):
            raise TaskiqResultTimeoutError(timeout=timeout)
        return await self.get_result(with_logs)


class _Kicker(AsyncKicker[P, T]):
    async def kiq(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        sent: Any = await super().kiq(*args, **kwargs)
        return WatchedTask(sent.task_id, sent.result_backend, sent.return_type)


class WatchingTask(AsyncTaskiqDecoratedTask[P, T]):
    """A function of the program that `broker.task` has made a task."""

    def kicker(self) -> AsyncKicker[P, T]:
        return _Kicker(self.task_name, self.broker, dict(self.labels), self.return_type)
