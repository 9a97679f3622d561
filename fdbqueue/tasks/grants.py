"""TaskProducer and TaskConsumer: the halves of a task queue."""

from fdbqueue.core.handle import Grant
from fdbqueue.tasks.putting import Putting
from fdbqueue.tasks.taking import Taking


class TaskProducer(Grant, Putting):
    """A handle that puts tasks, and does nothing else. `TaskQueue.producer` makes it."""

    __slots__ = ()


class TaskConsumer(Grant, Taking):
    """A handle that takes tasks and ends their leases. `TaskQueue.consumer` makes it."""

    __slots__ = ()
