"""Tasks as they come: the loop that takes, acks after the body, and releases if the body was left."""

from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from fdbqueue.aio.database import Database
from fdbqueue.database import Database as BlockingDatabase
from fdbqueue.errors import NotTaken
from fdbqueue.task import Task
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue

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
    """An asynchronous iterator over the tasks of a queue. It also is a context manager: its end releases.

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
        if self._task is not None and not self._task.has_ended:
            await self._queue.ack(self._database, self._task)
        self._task = None  # only now: an ack that was cancelled may have left the task taken
        task = await self._queue.take(self._database, **self._options)
        if task is None:
            raise StopAsyncIteration
        self._task = ConsumedTask.of(task)
        return self._task

    async def aclose(self) -> None:
        """Release the task of the body that was left."""
        left, self._task = self._task, None
        if left is not None and not left.has_ended:
            await self._database.run_blocking(lambda db: _release(self._queue.blocking, db, left))

    async def __aenter__(self) -> "Consumption":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        left, hub = self._task, self._database.hub
        if left is None or left.has_ended or self._database.closed or hub.loop.is_closed():
            return
        hub.spawn(partial(_release, self._queue.blocking, self._database.blocking, left), "fdbqueue-release")


def _release(queue: BlockingTaskQueue, db: BlockingDatabase, task: Task) -> None:
    with suppress(NotTaken):  # its lease is over, or an ack of unknown result has succeeded
        queue.release(db, task)
