"""Queues: those of fdbqueue, awaited."""

from typing import Any

from fdbqueue.aio.aside import AsideFace
from fdbqueue.aio.grants import QueueConsumer, QueueProducer, TaskConsumer, TaskProducer
from fdbqueue.aio.halves import Dequeuing, Enqueuing, Putting, Taking
from fdbqueue.aio.verbs import Maker, Verb, awaited, constructor_of
from fdbqueue.database import Database as BlockingDatabase
from fdbqueue.fair.items import Handed
from fdbqueue.fair.queue import FairQueue as BlockingFairQueue
from fdbqueue.recipe.queue import Queue as BlockingQueue
from fdbqueue.runtime import Stop
from fdbqueue.seam import DatabaseOrTransaction
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue


def _put_again(
    queue: BlockingFairQueue, db: BlockingDatabase, handed: Handed | None, *_: Any, **__: Any
) -> None:
    if handed is not None:
        queue.give_back(db, handed.item, cost=handed.cost)


class Queue(Enqueuing[BlockingQueue], Dequeuing[BlockingQueue], AsideFace[BlockingQueue]):
    """`fdbqueue.Queue`, awaited."""

    @constructor_of(BlockingQueue)
    def __init__(self) -> None: ...

    named = Maker(BlockingQueue.named)

    def producer(self) -> QueueProducer:
        """As `fdbqueue.Queue.producer`."""
        return QueueProducer.over(self._blocking.producer(), self._hub)

    def consumer(self) -> QueueConsumer:
        """As `fdbqueue.Queue.consumer`."""
        return QueueConsumer.over(self._blocking.consumer(), self._hub)

    items = awaited(BlockingQueue.items)
    partitions = awaited(BlockingQueue.partitions)
    repartition = awaited(BlockingQueue.repartition)
    clear = awaited(BlockingQueue.clear)


class FairQueue(AsideFace[BlockingFairQueue]):
    """`fdbqueue.FairQueue`, awaited."""

    @constructor_of(BlockingFairQueue)
    def __init__(self) -> None: ...

    put = awaited(BlockingFairQueue.put)

    async def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """As `fdbqueue.FairQueue.get`."""
        return (await self.take_item(tr, timeout, stop=stop))[1]

    _taken = Verb[Any, Handed | None](BlockingFairQueue._take_handed, None, _put_again, name="_take_handed")

    async def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """As `fdbqueue.FairQueue.take_item`."""
        handed = await self._taken(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    give_back = awaited(BlockingFairQueue.give_back)
    size = awaited(BlockingFairQueue.size)
    key_statistics = awaited(BlockingFairQueue.key_statistics)
    snapshot = awaited(BlockingFairQueue.snapshot)


class TaskQueue(Putting[BlockingTaskQueue], Taking[BlockingTaskQueue], AsideFace[BlockingTaskQueue]):
    """`fdbqueue.TaskQueue`, awaited."""

    create = Maker(BlockingTaskQueue.create)
    open = Maker(BlockingTaskQueue.open)

    def producer(self) -> TaskProducer:
        """As `fdbqueue.TaskQueue.producer`."""
        return TaskProducer.over(self._blocking.producer(), self._hub)

    def consumer(self) -> TaskConsumer:
        """As `fdbqueue.TaskQueue.consumer`."""
        return TaskConsumer.over(self._blocking.consumer(), self._hub)

    cancel = awaited(BlockingTaskQueue.cancel)
    delete = awaited(BlockingTaskQueue.delete)

    peek = awaited(BlockingTaskQueue.peek)
    wait_for_progress = awaited(BlockingTaskQueue.wait_for_progress)
    result = awaited(BlockingTaskQueue.result)
    forget_result = awaited(BlockingTaskQueue.forget_result)
    explain = awaited(BlockingTaskQueue.explain)
    holder = awaited(BlockingTaskQueue.holder)
    ended_task = awaited(BlockingTaskQueue.ended_task)
    ended_tasks = awaited(BlockingTaskQueue.ended_tasks)
    ended_tasks_of = awaited(BlockingTaskQueue.ended_tasks_of)
    paused = awaited(BlockingTaskQueue.paused)
    failures = awaited(BlockingTaskQueue.failures)
    steps = awaited(BlockingTaskQueue.steps)
    statistics = awaited(BlockingTaskQueue.statistics)
    key_statistics = awaited(BlockingTaskQueue.key_statistics)
    partitions = awaited(BlockingTaskQueue.partitions)
    tasks = awaited(BlockingTaskQueue.tasks)

    kick = awaited(BlockingTaskQueue.kick)
    release_all = awaited(BlockingTaskQueue.release_all)
    release_some = awaited(BlockingTaskQueue.release_some)
    truncate = awaited(BlockingTaskQueue.truncate)
    truncate_some = awaited(BlockingTaskQueue.truncate_some)
    pause = awaited(BlockingTaskQueue.pause)
    resume = awaited(BlockingTaskQueue.resume)
    repartition = awaited(BlockingTaskQueue.repartition)
    busy = awaited(BlockingTaskQueue.busy)
    drop = awaited(BlockingTaskQueue.drop)

    def on_task_change(self, callback: Callback | None = None) -> Callback | None:
        """As `fdbqueue.TaskQueue.on_task_change`: `callback` is a plain function, called in a fiber."""
        return self._blocking.on_task_change(callback)
