"""QueueProducer and QueueConsumer: the halves of a recipe queue."""

from fdbqueue.core.handle import Grant
from fdbqueue.queues.recipe.dequeuing import Dequeuing
from fdbqueue.queues.recipe.enqueuing import Enqueuing


class QueueProducer(Grant, Enqueuing):
    """A handle that adds items, and does nothing else. `Queue.producer` makes it."""

    __slots__ = ()


class QueueConsumer(Grant, Dequeuing):
    """A handle that takes items and looks at the first one. `Queue.consumer` makes it."""

    __slots__ = ()
