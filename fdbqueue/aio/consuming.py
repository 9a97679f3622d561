"""Tasks as they come: the loop that takes, acks after the body, and releases if the body was left."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fdbqueue.aio.database import Database
from fdbqueue.task import Task

if TYPE_CHECKING:
    from fdbqueue.aio.queues import TaskQueue


@dataclass(frozen=True, slots=True)
class ConsumedTask(Task):
    """A task that a loop hands to its body. It remembers whether the body has ended its lease."""

    _ends: list[str | None] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, task: Task) -> "ConsumedTask":
        return cls(**{name.name: getattr(task, name.name) for name in fields(Task)})

    @property
    def has_ended(self) -> bool:
        """True if a verb has ended its lease; a verb that failed has not."""
        return bool(self._ends) and self._ends[-1] is not None

    def _note_end(self, verb: str | None) -> None:
        self._ends.append(verb)


class Consumption:
    """An asynchronous iterator over the tasks of a queue. It also is a context manager, whose end releases.

    An `async for` does not tell its iterator that the body was left by a break or an exception. The iterator
    is then dropped, and releases the task in a fiber of its own; with the context manager, the release has
    happened when the block is left.
    """

    def __init__(self, queue: "TaskQueue", db: Database, options: dict[str, Any]) -> None:
        self._queue = queue
        self._database = db
        self._options = options
        self._task: ConsumedTask | None = None

    def __aiter__(self) -> "Consumption":
        return self

    async def __anext__(self) -> Task:
        done, self._task = self._task, None
        if done is not None and not done.has_ended:
            await self._queue.ack(self._database, done)
        task = await self._queue.take(self._database, **self._options)
        if task is None:
            raise StopAsyncIteration
        self._task = ConsumedTask.of(task)
        return self._task

    async def aclose(self) -> None:
        """Release the task of the body that was left."""
        left, self._task = self._task, None
        if left is not None and not left.has_ended:
            await self._queue.release(self._database, left)

    async def __aenter__(self) -> "Consumption":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        left, hub = self._task, self._database.hub
        if left is None or left.has_ended or self._database.closed or hub.loop.is_closed():
            return
        queue, database = self._queue.blocking, self._database.blocking
        hub.spawn(lambda: queue.release(database, left), "fdbqueue-release")
