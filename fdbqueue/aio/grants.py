"""Grants, awaited: the halves of a queue."""

from typing import TYPE_CHECKING, Any

from fdbqueue.aio.fair_halves import FairPutting, FairTaking
from fdbqueue.aio.halves import Dequeuing, Enqueuing, Putting, Taking
from fdbqueue.errors import NotGranted
from fdbqueue.fair.grants import FairConsumer as BlockingFairConsumer
from fdbqueue.fair.grants import FairProducer as BlockingFairProducer
from fdbqueue.recipe.grants import QueueConsumer as BlockingQueueConsumer
from fdbqueue.recipe.grants import QueueProducer as BlockingQueueProducer
from fdbqueue.tasks.grants import TaskConsumer as BlockingTaskConsumer
from fdbqueue.tasks.grants import TaskProducer as BlockingTaskProducer


class _Grant:
    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise NotGranted(grant=f"aio.{kind}", verb=name)


class QueueProducer(_Grant, Enqueuing[BlockingQueueProducer]):
    """`fdbqueue.QueueProducer`, awaited."""


class QueueConsumer(_Grant, Dequeuing[BlockingQueueConsumer]):
    """`fdbqueue.QueueConsumer`, awaited."""


class TaskProducer(_Grant, Putting[BlockingTaskProducer]):
    """`fdbqueue.TaskProducer`, awaited."""


class TaskConsumer(_Grant, Taking[BlockingTaskConsumer]):
    """`fdbqueue.TaskConsumer`, awaited."""


class FairProducer(_Grant, FairPutting[BlockingFairProducer]):
    """`fdbqueue.FairProducer`, awaited."""


class FairConsumer(_Grant, FairTaking[BlockingFairConsumer]):
    """`fdbqueue.FairConsumer`, awaited."""
