"""FairQueue: items come out in rounds over their keys; no leases. A taken item is gone.

docs/tasks.md defines a round. Given a *transaction*, a call composes: it happens if and only if that
transaction commits. Given a *database*, it has its effect once (calls/once.py), may wait in the line, and
shares transactions with calls of other threads (calls/combine.py).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fdbqueue import limits, observing
from fdbqueue.arguments import (
    WHOLE_MAX,
    checked_payload,
    checked_prefix,
    checked_stop,
    checked_wait,
    checked_whole,
    writable,
)
from fdbqueue.aside import KeepsAside
from fdbqueue.calls.once import run_once
from fdbqueue.calls.writes import Writes
from fdbqueue.codec import codec_named
from fdbqueue.database import Database, as_database, is_transaction, run, runtime_of
from fdbqueue.deferred import checked_function, require_finished
from fdbqueue.errors import FairQueueFull
from fdbqueue.fair.items import FairItems, Handed, draft
from fdbqueue.fair.looking import FairSnapshot, snapshot
from fdbqueue.line.taking import Takes
from fdbqueue.observing import Call
from fdbqueue.page import checked_limit
from fdbqueue.records.keys import TaskKeys
from fdbqueue.registry.registry import Registry
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.runtime import Stop
from fdbqueue.seam import DatabaseOrTransaction, Transaction
from fdbqueue.tasks.key_statistics import KeyStatistics, checked_keys
from fdbqueue.tasks.kinds import Draft, checked_units, key_bytes, packed_weights


class FairQueue(KeepsAside):
    """A fair queue in a subspace. `key` computes the key of an item, a value that the tuple layer can pack.

    `weights`: quotas of keys in each round, 1 for all others. `capacity`: None is unbounded. Every user of
    the subspace must choose the same options. A FairQueue is a value: threads may share it.
    """

    def __init__(
        self,
        subspace: Any,
        *,
        key: Callable[[Any], Any],
        capacity: int | None = 128,
        weights: Mapping[Any, int] | None = None,
        codec: str = "json",
        type: Any = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """Raises: InvalidArgument, DeferredBody, UnknownCodec; WrongType for the subspace."""
        if capacity is not None:
            checked_whole("capacity", capacity, 0, WHOLE_MAX)
        packed = packed_weights(weights)
        self._key = checked_function("key", key)
        self._capacity = capacity
        self._codec = codec_named(codec, type)
        prefix = checked_prefix("subspace", subspace)
        registry = Registry(root)
        self._root = registry.keys
        self._items = FairItems(registry, TaskKeys(subspace), self._codec, packed)
        self._aside, self._ask_exists = self._items.aside, self._items.guard
        # Calls combine only with calls that would do exactly the same.
        self._service = (
            "fair",
            prefix,
            self._codec.key,
            frozenset((packed or {}).items()),
            self._root.prefix,
        )

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
        WaitStopped as soon as `stop` is set.
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

    def _call(self, tr: DatabaseOrTransaction, name: str, *, waits: bool = False) -> Call:
        within = is_transaction(tr)
        runtime = runtime_of(tr) if within else as_database(tr).runtime
        return Call(runtime, name, "", within=within, waits=waits)

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

    def size(self, tr: DatabaseOrTransaction) -> int:
        """The number of items, without those on their way to a caller in the line.

        Reads: one key, by snapshot.
        Conflicts: none.
        """
        return run(tr, lambda tr: self._items.size(writable(tr)))

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

    def _key_of(self, item: Any) -> bytes:
        return key_bytes(require_finished("the key function", self._key(item)))

    def _calls_of(self, target: DatabaseOrTransaction) -> "FairCalls":
        return as_database(target).service(self._service, lambda db: FairCalls(db, self._items, self._root))

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


class FairCalls:
    """The services of one process for one fair queue of one database: combined calls, and a place in the
    line.
    """

    def __init__(self, database: Database, items: FairItems, root: RootKeys) -> None:
        self._database = database
        self._items = items
        self._puts = Writes(database, root, self._put)
        self.takes = Takes(database, root, items.line, items.taker.take_in_turn)

    def close(self) -> None:
        """Does nothing: the database has ended the waits."""

    def require_none_passed(self) -> None:
        """Raises: the error of an item that was passed over, if one is left."""
        if self._items.passed:
            run(self._database, self._items.require_none_passed)

    def is_needed(self) -> bool:
        return False

    def put(self, new: Draft) -> None:
        self._puts.call([new], len(new.payload))

    def _put(self, tr: Transaction, items: list[Draft], random: bytes) -> Sequence[Draft]:
        self._items.append(tr, items, random, self._database.runtime.now_us())
        return items
