"""Grants, awaited: the halves of a queue."""

from typing import TYPE_CHECKING, Any

from fdbqueue.aio.fair_halves import FairPutting, FairTaking
from fdbqueue.aio.halves import Dequeuing, Enqueuing, Putting, Taking
from fdbqueue.core.errors import NotGranted
from fdbqueue.queues.fair.grants import FairConsumer as BlockingFairConsumer
from fdbqueue.queues.fair.grants import FairProducer as BlockingFairProducer
from fdbqueue.queues.recipe.grants import QueueConsumer as BlockingQueueConsumer
from fdbqueue.queues.recipe.grants import QueueProducer as BlockingQueueProducer
from fdbqueue.tasks.grants import TaskConsumer as BlockingTaskConsumer
from fdbqueue.tasks.grants import TaskProducer as BlockingTaskProducer


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
