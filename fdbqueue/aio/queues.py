"""Queues and their grants: those of fdbqueue, awaited."""

from typing import TYPE_CHECKING, Any

from fdbqueue.aio.halves import Dequeuing, Enqueuing, FairPutting, FairTaking, Putting, Taking
from fdbqueue.aio.handle import AsideFace, HandleFace
from fdbqueue.aio.verbs import Maker, awaited, constructor_of
from fdbqueue.core.errors import NotGranted
from fdbqueue.queues.fair import FairConsumer as BlockingFairConsumer
from fdbqueue.queues.fair import FairProducer as BlockingFairProducer
from fdbqueue.queues.fair import FairQueue as BlockingFairQueue
from fdbqueue.queues.recipe.queue import Queue as BlockingQueue
from fdbqueue.queues.recipe.queue import QueueConsumer as BlockingQueueConsumer
from fdbqueue.queues.recipe.queue import QueueProducer as BlockingQueueProducer
from fdbqueue.tasks.dead_letters import DeadLetters as BlockingDeadLetters
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.queue import TaskConsumer as BlockingTaskConsumer
from fdbqueue.tasks.queue import TaskProducer as BlockingTaskProducer
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue


class _Grant:
    __slots__ = ()

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise NotGranted(grant=f"aio.{kind}", verb=name)


class QueueProducer(_Grant, Enqueuing[BlockingQueueProducer]):
    """`fdbqueue.QueueProducer`, awaited."""

    __slots__ = ()


class QueueConsumer(_Grant, Dequeuing[BlockingQueueConsumer]):
    """`fdbqueue.QueueConsumer`, awaited."""

    __slots__ = ()


class TaskProducer(_Grant, Putting[BlockingTaskProducer]):
    """`fdbqueue.TaskProducer`, awaited."""

    __slots__ = ()


class TaskConsumer(_Grant, Taking[BlockingTaskConsumer]):
    """`fdbqueue.TaskConsumer`, awaited."""

    __slots__ = ()


class FairProducer(_Grant, FairPutting[BlockingFairProducer]):
    """`fdbqueue.FairProducer`, awaited."""

    __slots__ = ()


class FairConsumer(_Grant, FairTaking[BlockingFairConsumer]):
    """`fdbqueue.FairConsumer`, awaited."""

    __slots__ = ()


class Queue(Enqueuing[BlockingQueue], Dequeuing[BlockingQueue], AsideFace[BlockingQueue]):
    """`fdbqueue.Queue`, awaited."""

    __slots__ = ()

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


class FairQueue(FairPutting[BlockingFairQueue], FairTaking[BlockingFairQueue], AsideFace[BlockingFairQueue]):
    """`fdbqueue.FairQueue`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingFairQueue)
    def __init__(self) -> None: ...

    def producer(self) -> FairProducer:
        """As `fdbqueue.FairQueue.producer`."""
        return FairProducer.over(self._blocking.producer(), self._hub)

    def consumer(self) -> FairConsumer:
        """As `fdbqueue.FairQueue.consumer`."""
        return FairConsumer.over(self._blocking.consumer(), self._hub)

    key_statistics = awaited(BlockingFairQueue.key_statistics)
    snapshot = awaited(BlockingFairQueue.snapshot)


class TaskQueue(Putting[BlockingTaskQueue], Taking[BlockingTaskQueue], AsideFace[BlockingTaskQueue]):
    """`fdbqueue.TaskQueue`, awaited."""

    __slots__ = ()

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


class DeadLetters(HandleFace[BlockingDeadLetters], AsideFace[BlockingDeadLetters]):
    """`fdbqueue.DeadLetters`, awaited."""

    __slots__ = ()

    open = Maker(BlockingDeadLetters.open)

    classes = awaited(BlockingDeadLetters.classes)
    tasks = awaited(BlockingDeadLetters.tasks)
    kick = awaited(BlockingDeadLetters.kick)
    kick_matching = awaited(BlockingDeadLetters.kick_matching)
    kick_some = awaited(BlockingDeadLetters.kick_some)
    edit = awaited(BlockingDeadLetters.edit)
    redrive = awaited(BlockingDeadLetters.redrive)
    begin_redrive = awaited(BlockingDeadLetters.begin_redrive)
    run_redrive = awaited(BlockingDeadLetters.run_redrive)
    step_redrive = awaited(BlockingDeadLetters.step_redrive)
    pause_redrive = awaited(BlockingDeadLetters.pause_redrive)
    resume_redrive = awaited(BlockingDeadLetters.resume_redrive)
    stop_redrive = awaited(BlockingDeadLetters.stop_redrive)
