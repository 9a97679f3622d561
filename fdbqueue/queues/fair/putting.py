"""The verb that adds items to a fair queue."""

from functools import partial
from typing import Any

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import checked_payload, writable
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import as_database, is_transaction, runtime_of
from fdbqueue.core.errors import FairQueueFull
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.queues.fair.handle import FairHandle
from fdbqueue.queues.fair.items import draft
from fdbqueue.tasks.kinds import checked_units


class FairPutting(FairHandle):
    """The verb of a producer."""

    __slots__ = ()

    def put(self, tr: DatabaseOrTransaction, item: Any, *, cost: int = 1) -> None:
        """Add an item; it counts as `cost` items of its key.

        Reads: by snapshot, the last item, the size, and how the key stands.
        Writes: the item, the size.
        Conflicts: a change that adds the first item of its key or removes the last; near the capacity, other
        puts.
        Raises: FairQueueFull with the `item` and the `current_size`; InvalidArgument, PayloadTooLarge; the
        errors of the key function. Then nothing is written.
        """
        payload = checked_payload(self._codec.encode(item))
        cost = checked_units("cost", cost)
        if observing.observers:
            with self._call(tr, "put"):
                self._put_item(tr, item, payload, cost)
        else:
            self._put_item(tr, item, payload, cost)

    def _put_item(self, tr: DatabaseOrTransaction, item: Any, payload: bytes, cost: int) -> None:
        if self._capacity is None and not is_transaction(tr):
            new = draft(payload, self._key_of(item), cost)
            self._calls_of(tr).put(new)
            return
        runtime = runtime_of(tr) if is_transaction(tr) else as_database(tr).runtime
        body = partial(
            self._put,
            item=item,
            payload=payload,
            cost=cost,
            random=runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES),
            now_us=runtime.now_us(),
        )
        if is_transaction(tr):
            body(writable(tr))
        else:
            run_once(as_database(tr), self._root, body)

    def _put(
        self, tr: Transaction, *, item: Any, payload: bytes, cost: int, random: bytes, now_us: int
    ) -> None:
        if self._capacity is not None:
            size = self._items.admit(tr, self._capacity, random)
            if size is not None:
                raise FairQueueFull(item=item, current_size=size, capacity=self._capacity)
        # Only now: the key function must not be called for an item that has no room.
        new = draft(payload, self._key_of(item), cost)
        self._items.append(tr, [new], random, now_us)
