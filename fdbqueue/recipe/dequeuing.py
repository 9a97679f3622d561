"""Verbs that take items out of a recipe queue, and look at its head."""

from collections.abc import Iterable
from typing import Any, TypeVar

from fdbqueue import limits, observing
from fdbqueue.arguments import (
    checked_batch,
    checked_batch_count,
    checked_items,
    checked_payload,
    checked_stop,
    checked_wait,
    writable,
)
from fdbqueue.calls.once import run_once
from fdbqueue.codec import encoded_each
from fdbqueue.database import as_database, is_transaction, run, runtime_of
from fdbqueue.recipe.handle import QueueHandle
from fdbqueue.recipe.holding import Holder
from fdbqueue.runtime import Stop
from fdbqueue.seam import AnyDatabase, DatabaseOrTransaction, Transaction

D = TypeVar("D")


class Dequeuing(QueueHandle):
    """The verbs of a consumer."""

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
        if is_transaction(tr):
            recipe = self._watched(tr) if observing.observers else self._recipe_of(tr)
            found = recipe.take(writable(tr), 1, runtime_of(tr).now_us()).values
        else:
            calls = self._calls_of(tr)
            found = calls.wait(timeout_s, stop) if timeout_s else calls.take(1, stop)
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
        if is_transaction(tr):
            recipe = self._watched(tr) if observing.observers else self._recipe_of(tr)
            return list(recipe.take(writable(tr), n, runtime_of(tr).now_us()).values)
        return list(self._calls_of(tr).take(n))

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
