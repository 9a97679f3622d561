"""FairQueue: items come out in rounds, one of each key; no leases. What is taken is gone.

docs/tasks.md says what a round is. Given a *transaction* a call composes: it happens if and only if that
transaction commits. Given a *database* it has its effect once (receipts.py), may wait in a fair line, and
shares transactions with the calls of other threads (line/combine.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.arguments import checked_timeout, too_much, writable
from fdbqueue.codec import codec_named
from fdbqueue.database import Database, as_database, is_transaction, run, runtime_of
from fdbqueue.errors import FairQueueFull, PayloadTooLarge
from fdbqueue.fair.items import FairItems, NewItem
from fdbqueue.line.combine import Call, Combiner
from fdbqueue.line.taking import Takes
from fdbqueue.receipts import run_once
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.runtime import Runtime
from fdbqueue.seam import Transaction
from fdbqueue.tasks.key_statistics import KeyStatistics, busiest_keys, checked_keys
from fdbqueue.tasks.keys import Record, TaskKeys, record_of
from fdbqueue.tasks.kinds import checked_shares, checked_whole, key_bytes, packed_weights
from fdbqueue.tasks.tasks_of import pages_of, require_one_page, still_there


class FairSnapshot(NamedTuple):
    """What a fair queue holds."""

    round: list[Any]
    """What is left of the current round, in order."""
    lines: list[tuple[Any, list[Any]]]
    """The other items of each key, in order; keys are pairs' firsts, because a dict takes 1 for True."""


class FairQueue:
    """A fair queue in a subspace. `key` tells an item's key (a value the tuple layer can pack); `weights`
    the shares of keys that have more than one a round.

    `capacity` None is unbounded. Everybody who uses the subspace must choose the same. A FairQueue is a
    value and may be shared by threads.
    """

    def __init__(
        self,
        subspace: Any,
        *,
        key: Callable[[Any], Any],
        capacity: int | None = 128,
        weights: Mapping[Any, int] | None = None,
        codec: str = "json",
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """Raises InvalidArgument, UnknownCodec."""
        if capacity is not None:
            checked_whole("capacity", capacity, 0, 2**62)
        shares = packed_weights(weights)
        self._key = key
        self._capacity = capacity
        self._codec = codec_named(codec)
        self._root = RootKeys(root)
        self._items = FairItems(TaskKeys(subspace), self._codec, shares)
        # Calls combine only with calls that would do exactly the same.
        self._service = ("fair", subspace.key(), codec, frozenset((shares or {}).items()), root.key())

    def put(self, tr: Any, item: Any, *, cost: int = 1) -> None:
        """Add an item; it counts as `cost` items of its key.

        Reads the last item, the size and how the key stands by snapshot; writes the item and the size;
        conflicts with what empties or fills its key and, near the capacity, with other puts. Raises
        FairQueueFull with the `item` and the `current_size`, InvalidArgument, PayloadTooLarge, and whatever
        the key function raises; then nothing is written.
        """
        payload = self._codec.encode(item)
        if len(payload) > limits.PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
        shares = checked_shares("cost", cost)
        if self._capacity is None and not is_transaction(tr):
            new = NewItem(payload, key_bytes(self._key(item)), shares)
            self._calls_of(tr).put(new)
            return
        runtime = runtime_of(tr) if is_transaction(tr) else as_database(tr).runtime
        body = partial(
            self._put,
            item=item,
            payload=payload,
            cost=shares,
            random=runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES),
            now_us=_now_us(runtime),
        )
        if is_transaction(tr):
            body(writable(tr))
        else:
            run_once(as_database(tr), self._root, body)

    def get(self, tr: Any, timeout: float = 0) -> Any:
        """Remove the next item and return it; None if there is none. All else like `take_item`."""
        return self.take_item(tr, timeout)[1]

    def take_item(self, tr: Any, timeout: float = 0) -> tuple[bool, Any]:
        """Remove the next item; whether there was one, and the item.

        Given a transaction: reads the first pointer, the state and the line of its key; conflicts with other
        takers of the same key, with puts only where it leaves the key empty; an answer of nothing, with any
        put. Given a database: exactly once; waits up to `timeout` seconds, in a fair line. Raises
        InvalidArgument for a negative timeout, or one beside a transaction, which cannot wait.
        """
        checked_timeout(timeout, tr)
        found: Sequence[Any]
        if is_transaction(tr):
            found = self._items.take(writable(tr), 1, _now_us(runtime_of(tr))).values
        else:
            takes = self._calls_of(tr).takes
            found = takes.wait(timeout) if timeout else takes.take(1)
        return (True, found[0]) if found else (False, None)

    def size(self, tr: Any) -> int:
        """How many items there are; not counted are those on their way to a caller in the line.

        Reads one key by snapshot; conflicts with nothing.
        """
        return run(tr, self._items.size)

    def key_statistics(self, tr: Any, limit: int) -> list[KeyStatistics]:
        """The keys of which most items are waiting; exact, and found, as TaskQueue.key_statistics says."""
        checked_keys(limit)
        now_us = _now_us(runtime_of(tr) if is_transaction(tr) else as_database(tr).runtime)
        return run(tr, lambda tr: busiest_keys(tr, self._items.fair, limit, now_us))

    def snapshot(self, tr: Any) -> FairSnapshot:
        """All there is, for looking at. Reads by snapshot; conflicts with nothing.

        Given a database: above limits.BATCH_BYTES_MAX bytes in several transactions, and an item that is
        taken before its data is read is left out. Raises TooMuchForOneTransaction for more than
        limits.BATCH_ITEMS_MAX items; given a transaction, for more bytes, too, unless they are one item's.
        """
        pages, of_round, items = run(tr, self._look)
        if is_transaction(tr):
            require_one_page(pages)
        for page in pages[1:]:
            items |= run(tr, partial(self._items_of, records=page))
        there = [record for page in pages for record in page if record.id in items]
        left = [record for record in there if record.id not in of_round]
        return FairSnapshot([items[id_] for id_ in of_round if id_ in items], list(_by_key(left, items)))

    def _calls_of(self, target: Any) -> "FairCalls":
        return as_database(target).service(self._service, lambda db: FairCalls(db, self._items, self._root))

    def _put(
        self, tr: Transaction, *, item: Any, payload: bytes, cost: int, random: bytes, now_us: int
    ) -> None:
        if self._capacity is not None:
            size = self._items.admit(tr, self._capacity, random)
            if size is not None:
                raise FairQueueFull(item=item, current_size=size, capacity=self._capacity)
        # Only now: an item that there is no room for is none of the key function's business.
        new = NewItem(payload, key_bytes(self._key(item)), cost)
        self._items.append(tr, [new], random, now_us)

    def _look(self, tr: Transaction) -> tuple[list[list[Record]], list[bytes], dict[bytes, Any]]:
        """The items in pages, the ids of those of this round in order, and the data of the first page."""
        more, tasks = limits.BATCH_ITEMS_MAX + 1, self._items.keys.tasks
        found = tr.snapshot.get_range(tasks.start, tasks.stop, limit=more).to_list()
        if len(found) == more:
            raise too_much(more, 0)
        of_round = [record.id for record in self._items.fair.of_this_round(tr, len(found))]
        pages = pages_of([record_of(entry.value) for entry in found])
        return pages, of_round, self._items_of(tr, pages[0]) if pages else {}

    def _items_of(self, tr: Transaction, records: Sequence[Record]) -> dict[bytes, Any]:
        """The data of those that are there, by id."""
        found = still_there(tr, self._items.keys, self._codec, records)
        return {record.id: item for record, item in found}


class FairCalls:
    """What one process keeps for one fair queue of one database: combined calls, a place in the line."""

    def __init__(self, database: Database, items: FairItems, root: RootKeys) -> None:
        self._database = database
        self._items = items
        self._root = root
        self._puts = Combiner(database.runtime, self._put_for)
        self.takes = Takes(
            database, root, items.line, lambda tr, count, _, now_us: items.take_in_turn(tr, count, now_us)
        )

    def close(self) -> None:
        """Nothing to end: callers that wait in the line meet DatabaseClosed."""

    def put(self, new: NewItem) -> None:
        self._puts.call([new], 1, len(new.payload))

    def _put_for(self, crew: Combiner, _: Call) -> None:
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        news = [new for call in calls for new in call.payload]
        random = self._database.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        now_us = _now_us(self._database.runtime)
        run_once(
            self._database,
            self._root,
            lambda tr: self._items.append(tr, news, random, now_us),
            keep=lambda _: crew.deal(news, to_all=True),
        )


def _now_us(runtime: Runtime) -> int:
    return round(runtime.now() * 1_000_000)


def _by_key(records: list[Record], items: Mapping[bytes, Any]) -> Iterator[tuple[Any, list[Any]]]:
    for key in dict.fromkeys(record.key for record in records):
        yield layer.unpack(key)[0], [items[record.id] for record in records if record.key == key]
