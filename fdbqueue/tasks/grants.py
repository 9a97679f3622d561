"""TaskProducer and TaskConsumer: the halves of a task queue."""

from fdbqueue.grant import Grant
from fdbqueue.tasks.putting import Putting
from fdbqueue.tasks.taking import Taking


class TaskProducer(Grant, Putting):
    """A handle that puts tasks, and does nothing else. `TaskQueue.producer` makes it."""


class TaskConsumer(Grant, Taking):
    """A handle that takes tasks and ends their leases. `TaskQueue.consumer` makes it."""
