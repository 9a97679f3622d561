"""FairQueue: items come out in rounds over their keys; no leases. A taken item is gone.

docs/tasks.md defines a round. Given a *transaction*, a call composes: it happens if and only if that
transaction commits. Given a *database*, it has its effect once (calls/once.py), may wait in the line, and
shares transactions with calls of other threads (calls/combine.py).
"""

from fdbqueue import limits
from fdbqueue.arguments import writable
from fdbqueue.calls.asides import KeepsAside
from fdbqueue.database import as_database, is_transaction, run, runtime_of
from fdbqueue.fair.grants import FairConsumer, FairProducer
from fdbqueue.fair.looking import FairSnapshot, snapshot
from fdbqueue.fair.putting import FairPutting
from fdbqueue.fair.taking import FairTaking
from fdbqueue.page import checked_limit
from fdbqueue.seam import DatabaseOrTransaction
from fdbqueue.tasks.key_statistics import KeyStatistics, checked_keys


class FairQueue(FairPutting, FairTaking, KeepsAside):
    """A fair queue in a subspace. `key` computes the key of an item, a value that the tuple layer can pack.

    `weights`: quotas of keys in each round, 1 for all others. `capacity`: None is unbounded. Every user of
    the subspace must choose the same options. A FairQueue is a value: threads may share it.
    """

    def key_statistics(self, tr: DatabaseOrTransaction, limit: int) -> list[KeyStatistics]:
        """The keys with the most waiting items: exact, and chosen, as in TaskQueue.key_statistics."""
        checked_keys(limit)
        now_us = (runtime_of(tr) if is_transaction(tr) else as_database(tr).runtime).now_us()
        return run(tr, lambda tr: self._items.busiest(writable(tr), limit, now_us))

    def snapshot(
        self, tr: DatabaseOrTransaction, limit: int = limits.BATCH_ITEMS_MAX, *, after: str | None = None
    ) -> FairSnapshot:
        """A page of the items by arrival: at most `limit` and limits.BATCH_ITEMS_MAX items, and
        limits.BATCH_BYTES_MAX bytes, or one larger item.

        The page's `next` is the `after` of the following page, None at the end. Of the current round, the
        first limits.BATCH_ITEMS_MAX items are marked.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument.
        """
        most = checked_limit(limit)
        return run(tr, lambda tr: snapshot(writable(tr), self._items, most, after))

    # Halves of the queue.

    def producer(self) -> FairProducer:
        """A handle that only puts: `put`."""
        return FairProducer._half_of(self)

    def consumer(self) -> FairConsumer:
        """A handle that only takes: `get`, `take_item`, `give_back` and `size`."""
        return FairConsumer._half_of(self)
