"""FairProducer and FairConsumer: the halves of a fair queue."""

from fdbqueue.core.handle import Grant
from fdbqueue.queues.fair.putting import FairPutting
from fdbqueue.queues.fair.taking import FairTaking


class FairProducer(Grant, FairPutting):
    """A handle that puts items, and does nothing else. `FairQueue.producer` makes it."""

    __slots__ = ()


class FairConsumer(Grant, FairTaking):
    """A handle that takes items, and puts them again. `FairQueue.consumer` makes it."""

    __slots__ = ()
