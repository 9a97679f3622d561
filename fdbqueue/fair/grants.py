"""FairProducer and FairConsumer: the halves of a fair queue."""

from fdbqueue.fair.putting import FairPutting
from fdbqueue.fair.taking import FairTaking
from fdbqueue.grant import Grant


class FairProducer(Grant, FairPutting):
    """A handle that puts items, and does nothing else. `FairQueue.producer` makes it."""


class FairConsumer(Grant, FairTaking):
    """A handle that takes items, and puts them again. `FairQueue.consumer` makes it."""
