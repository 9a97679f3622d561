"""FairQueue: items come out in rounds over their keys; no leases. A taken item is gone.

docs/tasks.md defines a round. Given a *transaction*, a call composes: it happens if and only if that
transaction commits. Given a *database*, it has its effect once (calls/once.py), may wait in the line, and
shares transactions with calls of other threads (calls/combine.py).
"""

from typing import Any, NamedTuple

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.arguments import writable
from fdbqueue.core.calls.asides import KeepsAside
from fdbqueue.core.database import as_database, is_transaction, run, runtime_of
from fdbqueue.core.handle import Handle
from fdbqueue.core.page import checked_limit, no_place, place_bytes, place_text, within_bytes
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.core.unreadable import shown
from fdbqueue.queues.fair.grants import FairConsumer, FairProducer
from fdbqueue.queues.fair.items import FairItems
from fdbqueue.queues.fair.putting import FairPutting
from fdbqueue.queues.fair.taking import FairTaking
from fdbqueue.tasks.key_statistics import KeyStatistics, checked_keys
from fdbqueue.tasks.records.keys import ID_BYTES, Record, sound_record
from fdbqueue.tasks.tasks_of import ask_payloads


class _Contents(NamedTuple):
    round: list[Any]
    """The items of the page that belong to the rest of the current round, in order."""
    lines: list[tuple[Any, list[Any]]]
    """Pairs of a key and its other items, in order. (In a dict, the keys 1 and True would be one.)"""


class FairSnapshot(_Contents):
    """A page of the items of a fair queue. `next` is the `after=` of the following page, None at the end."""

    next: str | None = None


def snapshot(tr: Transaction, items: FairItems, limit: int, after: str | None) -> FairSnapshot:
    """The next items by arrival: those of the current round, and the others.

    An item behind the first limits.BATCH_ITEMS_MAX of the round counts as one of the others.
    """
    records, last = _records(tr, items, limit, _place(after))
    asked = ask_payloads(tr, items.keys, records)
    this_round = [record.id for record in items.looking.of_this_round(tr, limits.BATCH_ITEMS_MAX)]
    there = {record.id: shown(items.codec, payload) for record, payload in zip(records, asked, strict=True)}
    of_round = [id_ for id_ in this_round if id_ in there]
    left = [record for record in records if record.id not in of_round]
    keys = dict.fromkeys(record.key for record in left)
    found = FairSnapshot(
        [there[id_] for id_ in of_round],
        [(layer.unpack(key)[0], [there[one.id] for one in left if one.key == key]) for key in keys],
    )
    found.next = None if last is None else place_text(last)
    return found


def _records(
    tr: Transaction, items: FairItems, limit: int, after: bytes | None
) -> tuple[list[Record], bytes | None]:
    """The records of a page, and the id of the last item that it has read; None if that is the last one of
    all. Damaged records are left out, and keys that are too long or too short tell no place.
    """
    tasks = items.keys.tasks
    start = tasks.start if after is None else items.keys.task(after) + b"\x00"
    check = items.guard(tr)
    found = tr.snapshot.get_range(start, tasks.stop, limit=limit + 1).to_list()
    check()
    ids = [entry.key[len(tasks.start) :] for entry in found]
    read = [(id_, sound_record(entry.value, id_)) for id_, entry in zip(ids, found, strict=True)]
    sizes = [0 if record is None else record.size_bytes for _, record in read[:limit]]
    count = within_bytes(sizes)
    records = [record for _, record in read[:count] if record is not None]
    places = [id_ for id_ in ids[:count] if len(id_) == ID_BYTES]
    return records, places[-1] if places and count < len(found) else None


def _place(after: str | None) -> bytes | None:
    place = place_bytes(after)
    if place is not None and len(place) != ID_BYTES:
        raise no_place(after)
    return place


class FairQueue(FairPutting, FairTaking, KeepsAside):
    """A fair queue in a subspace. `key` computes the key of an item, a value that the tuple layer can pack.

    `weights`: quotas of keys in each round, 1 for all others. `capacity`: None is unbounded. Every user of
    the subspace must choose the same options. A FairQueue is a value: threads may share it.
    """

    __slots__ = ()

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


_NO_ITEM: Any = object()


class QueueBy(Handle):
    """A fair queue on a database, with the calls of queue-by: `q(item)` puts, `q()` gets, `len(q)` counts."""

    __slots__ = ("database", "queue")

    def __init__(self, db: AnyDatabase, queue: FairQueue) -> None:
        """`queue` computes the keys, and has the capacity. Raises: NotADatabase."""
        self.database = as_database(db)
        self.queue = queue

    def _shown(self) -> dict[str, Any]:
        return {**self.queue._shown(), **self.database._shown()}

    def __call__(self, item: Any = _NO_ITEM) -> Any:
        """With an item: put it, and return this object. Without: the next item; None if there is none.

        Raises: FairQueueFull with the `item` and the `current_size`; all else as `FairQueue.put` and `get`.
        """
        if item is _NO_ITEM:
            return self.queue.get(self.database)
        self.queue.put(self.database, item)
        return self

    def __len__(self) -> int:
        return self.queue.size(self.database)
