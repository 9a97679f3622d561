"""Verbs that add items to a recipe queue."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import (
    checked_batch,
    checked_items,
    checked_payload,
    writable,
)
from fdbqueue.core.codec import encoded_each
from fdbqueue.core.database import is_transaction, runtime_of
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.queues.recipe.handle import QueueHandle


class Enqueuing(QueueHandle):
    """The verbs of a producer."""

    __slots__ = ()

    def enqueue(self, tr: DatabaseOrTransaction, value: Any) -> None:
        """Add `value` at the end.

        Given a database: exactly once, in a transaction that calls of other threads may share. It also writes
        a receipt, which tells a retry after an unknown result if the first attempt has committed. Given a
        transaction in a loop that retries after 1021, the value may come twice.
        Reads: the last item, by snapshot.
        Writes: the item, the size.
        Conflicts: none.
        Raises: TypeError for a value that the codec cannot carry, PayloadTooLarge; then nothing is written.
        """
        self._append(tr, [checked_payload(self._codec.encode(value))])

    def enqueue_many(self, tr: DatabaseOrTransaction, values: Iterable[Any]) -> None:
        """Add `values` at the end, in order, all or none. All else is as in `enqueue`.

        Raises: TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX values, or for two or more
        values with more than limits.BATCH_BYTES_MAX encoded bytes together.
        """
        self._append(
            tr,
            checked_batch(
                [
                    checked_payload(payload)
                    for payload in encoded_each(self._codec, checked_items("values", values))
                ]
            ),
        )

    def _append(self, target: DatabaseOrTransaction, payloads: list[bytes]) -> None:
        within = is_transaction(target)
        append = partial(self._append_within, target) if within else self._calls_of(target).append
        if not payloads:
            return
        if not observing.observers:
            append(payloads)
            return
        with self._observed(target, "enqueue", len(payloads)):
            append(payloads)

    def _append_within(self, tr: DatabaseOrTransaction, payloads: list[bytes]) -> None:
        random = runtime_of(tr).random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._recipe_of(tr).append(writable(tr), payloads, random)
