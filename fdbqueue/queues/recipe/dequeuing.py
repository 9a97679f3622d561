"""Verbs that take items out of a recipe queue, and look at its head."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import (
    checked_batch,
    checked_batch_count,
    checked_items,
    checked_payload,
    checked_stop,
    checked_wait,
    writable,
)
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.codec import encoded_each
from fdbqueue.core.database import as_database, is_transaction, run, runtime_of
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.queues.recipe.handle import QueueHandle
from fdbqueue.queues.recipe.holding import Holder

D = TypeVar("D")


class Dequeuing(QueueHandle):
    """The verbs of a consumer."""

    __slots__ = ()

    def dequeue(
        self,
        tr: DatabaseOrTransaction,
        default: D | None = None,
        timeout: float = 0,
        *,
        stop: Stop | None = None,
    ) -> Any | D | None:
        """Remove and return the first value; `default` if there is none.

        Given a database: exactly once, by a receipt as in `enqueue`. It waits up to `timeout` seconds for a
        value, in the line. If `stop`, an event, is set after a value was removed, the value is returned.
        Reads: the first item, serialisably.
        Writes: clears it.
        Conflicts: another taker of the same item. An answer of nothing in a transaction: an enqueue.
        Raises: InvalidArgument for a negative timeout, or for one beside a transaction, which cannot wait;
        PayloadUnreadable if another codec wrote the value; WaitStopped as soon as `stop` is set;
        TooMuchToSweep given a transaction, behind too many unreadable values.
        """
        timeout_s = checked_wait(timeout, tr)
        checked_stop(stop, tr)
        self._codec.require()
        found = self._take(tr, 1, timeout_s, stop)
        return found[0] if found else default

    def dequeue_many(self, tr: DatabaseOrTransaction, n: int) -> list[Any]:
        """Remove and return the first values, up to `n`.

        It takes fewer if they exceed limits.BATCH_BYTES_MAX bytes, or if the line gives only
        limits.SERVE_MAX. Only an empty list means that nothing is there. All else is as in `dequeue`.
        Raises: InvalidArgument for an `n` that is not a count; TooMuchForOneTransaction above
        limits.BATCH_ITEMS_MAX.
        """
        checked_batch_count("n", n)
        self._codec.require()
        return list(self._take(tr, n))

    def _take(
        self,
        tr: DatabaseOrTransaction,
        count: int,
        timeout_s: float = 0,
        stop: Stop | None = None,
        *,
        told: bool = False,
    ) -> Sequence[Any]:
        """`told`: the observers have been told of this call."""
        if observing.observers and not told:
            with self._observed(tr, "dequeue", 0, waits=timeout_s > 0) as call:
                found = self._take(tr, count, timeout_s, stop, told=True)
                call.count = len(found)
                return found
        if is_transaction(tr):
            return self._recipe_of(tr).take(writable(tr), count, runtime_of(tr).now_us()).values
        calls = self._calls_of(tr)
        return calls.wait(timeout_s, stop) if timeout_s else calls.take(count, stop)

    def give_back(self, tr: DatabaseOrTransaction, values: Iterable[Any]) -> None:
        """Add `values` before the first one, in order: for a caller that has dequeued them and cannot use
        them.

        Given a database: exactly once, by a receipt as in `enqueue`.
        Reads: the first item, by snapshot.
        Writes: the items, the size.
        Conflicts: takers.
        Raises: TypeError, PayloadTooLarge, TooMuchForOneTransaction, as `enqueue_many`.
        """
        encoded = encoded_each(self._codec, checked_items("values", values))
        payloads = checked_batch([checked_payload(payload) for payload in encoded])
        runtime = runtime_of(tr) if is_transaction(tr) else as_database(tr).runtime
        random, recipe = runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES), self._recipe_of(tr)

        def body(tr: Transaction) -> None:
            recipe.prepend(tr, payloads, random)

        if is_transaction(tr):
            body(writable(tr))
        else:
            run_once(as_database(tr), self._root, body)

    def peek(self, tr: DatabaseOrTransaction, default: D | None = None) -> Any | D | None:
        """The first value, which stays; `default` if there is none.

        Reads: the first item, serialisably.
        Conflicts: its taker. An answer of nothing: an enqueue.
        """
        recipe = self._recipe_of(tr)
        found = run(tr, lambda tr: recipe.first(tr, 1))
        return found[0] if found else default

    def empty(self, tr: DatabaseOrTransaction) -> bool:
        """True if there is nothing to dequeue. Reads and conflicts as `peek`."""
        return not run(tr, self._recipe_of(tr).any)

    def size(self, tr: DatabaseOrTransaction) -> int:
        """The number of values, without those on their way to a caller in the line.

        Reads: one counter, by snapshot.
        Conflicts: none.
        """
        recipe = self._recipe_of(tr)
        return run(tr, lambda tr: recipe.size(writable(tr)))

    def holder(self, db: AnyDatabase) -> Holder:
        """Takes items in two steps, for a reader that can fail in between (recipe/holding.py)."""
        return Holder(as_database(db), self._root, self._recipe_of(db))
