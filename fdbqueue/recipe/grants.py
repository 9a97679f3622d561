"""QueueProducer and QueueConsumer: the halves of a recipe queue."""

from fdbqueue.grant import Grant
from fdbqueue.recipe.dequeuing import Dequeuing
from fdbqueue.recipe.enqueuing import Enqueuing


class QueueProducer(Grant, Enqueuing):
    """A handle that adds items, and does nothing else. `Queue.producer` makes it."""


class QueueConsumer(Grant, Dequeuing):
    """A handle that takes items and looks at the first one. `Queue.consumer` makes it."""
