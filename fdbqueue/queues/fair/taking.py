"""Verbs that take items of a fair queue."""

from collections.abc import Sequence
from typing import Any

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import checked_payload, checked_stop, checked_wait, writable
from fdbqueue.core.database import is_transaction, run, runtime_of
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.queues.fair.handle import FairHandle
from fdbqueue.queues.fair.items import Handed, draft
from fdbqueue.tasks.kinds import checked_units


class FairTaking(FairHandle):
    """The verbs of a consumer."""

    __slots__ = ()

    def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """Remove the next item and return it; None if there is none. All else is as in `take_item`."""
        return self.take_item(tr, timeout, stop=stop)[1]

    def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """Remove the next item. Return true and the item, or false and None.

        Given a database: exactly once; waits up to `timeout` seconds, in the line. If `stop`, an event, is
        set after an item was removed, the item is returned.
        Reads: in a transaction, the first pointer, and the state and the items of its key.
        Conflicts: other takers of the same key; puts, only if the key becomes empty. An answer of nothing:
        any put.
        Raises: InvalidArgument for a negative timeout, or for one beside a transaction, which cannot wait;
        WaitStopped as soon as `stop` is set; TooMuchToSweep given a transaction, behind too many unreadable
        items.
        """
        handed = self._take_handed(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    def _take_handed(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> Handed | None:
        timeout_s = checked_wait(timeout, tr)
        checked_stop(stop, tr)
        if observing.observers:
            with self._call(tr, "take", waits=timeout_s > 0) as call:
                found = self._taken(tr, timeout_s, stop)
                call.count = len(found)
        else:
            found = self._taken(tr, timeout_s, stop)
        return found[0] if found else None

    def _taken(self, tr: DatabaseOrTransaction, timeout_s: float, stop: Stop | None) -> Sequence[Handed]:
        found: Sequence[Handed]
        if is_transaction(tr):
            found = self._items.taker.take(writable(tr), 1, b"", runtime_of(tr).now_us()).values
        else:
            calls = self._calls_of(tr)
            found = calls.takes.wait(timeout_s, stop=stop) if timeout_s else calls.takes.take(1, stop)
            if not found:
                calls.require_none_passed()
        return found

    def give_back(self, tr: DatabaseOrTransaction, item: Any, *, cost: int = 1) -> None:
        """Put an item again, whatever the capacity: for a caller that has taken it and cannot use it.

        It counts as newly put. All else is as in `put`.
        """
        new = draft(
            checked_payload(self._codec.encode(item)), self._key_of(item), checked_units("cost", cost)
        )
        if is_transaction(tr):
            runtime = runtime_of(tr)
            random = runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
            self._items.append(writable(tr), [new], random, runtime.now_us())
        else:
            self._calls_of(tr).put(new)

    def size(self, tr: DatabaseOrTransaction) -> int:
        """The number of items, without those on their way to a caller in the line.

        Reads: one key, by snapshot.
        Conflicts: none.
        """
        return run(tr, lambda tr: self._items.size(writable(tr)))
