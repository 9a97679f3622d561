"""FairQueue: items come out in rounds, one of each key; no leases. What is taken is gone.

The Fair discipline over items that are only ever ready; docs/tasks.md says what a round is. Keys as in
tasks/keys.py, of which there are no sessions, timers or lines.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue import limits
from fdbqueue.codec import codec_named
from fdbqueue.database import as_database, is_transaction, run, runtime_of
from fdbqueue.disciplines.fair import Fair
from fdbqueue.errors import FairQueueFull, PayloadTooLarge
from fdbqueue.queue import too_much, writable
from fdbqueue.receipts import run_once
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.task import TaskState
from fdbqueue.tasks.capacity import admit_to
from fdbqueue.tasks.change import clear_payload, pieces_of
from fdbqueue.tasks.keys import NEVER_US, Record, TaskKeys, new_id, record_of, record_to_bytes
from fdbqueue.tasks.kinds import checked_shares, checked_whole, key_bytes, packed_weights
from fdbqueue.tasks.statistics import LIVE, count_of, packed
from fdbqueue.tasks.tasks_of import ask_payload

T = TypeVar("T")


class FairSnapshot(NamedTuple):
    """What a fair queue holds."""

    round: list[Any]
    """What is left of the current round, in order."""
    lines: list[tuple[Any, list[Any]]]
    """The other items of each key, in order; keys are pairs' firsts, because a dict takes 1 for True."""


class FairQueue:
    """A fair queue in a subspace. `key` tells an item's key (a value the tuple layer can pack); `weights`
    the shares of keys that have more than one a round.

    `capacity` None is unbounded. Everybody who uses the subspace must choose the same. Given a database, a
    call has its effect once; given a transaction, if and only if that commits. Takers that meet retry.
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
        self._key = key
        self._capacity = capacity
        self._codec = codec_named(codec)
        self._root = RootKeys(root)
        self._keys = TaskKeys(subspace)
        self._fair = Fair(self._keys, {"weights": packed_weights(weights)})

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
        random = runtime_of(tr).random_bytes(limits.RANDOM_SUFFIX_BYTES)
        shares = checked_shares("cost", cost)
        self._once(tr, lambda tr: self._put(tr, item, payload, shares, random))

    def get(self, tr: Any) -> Any:
        """Remove the next item and return it; None if there is none. Reads and conflicts like `take_item`."""
        return self.take_item(tr)[1]

    def take_item(self, tr: Any) -> tuple[bool, Any]:
        """Remove the next item; whether there was one, and the item.

        Reads the first pointer, the state and the line of its key; conflicts with other takers of the same
        item, with puts only where it leaves the key empty. An answer of nothing conflicts with any put.
        """
        return self._once(tr, self._take)

    def size(self, tr: Any) -> int:
        """How many items there are. Reads one key by snapshot; conflicts with nothing."""
        return run(tr, lambda tr: count_of(tr.snapshot.get(self._keys.live).value))

    def snapshot(self, tr: Any) -> FairSnapshot:
        """All there is, for looking at. Reads by snapshot; conflicts with nothing.

        Raises TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX items.
        """
        return run(tr, self._look)

    def _once(self, target: Any, body: Callable[[Transaction], T]) -> T:
        if is_transaction(target):
            return body(writable(target))
        return run_once(as_database(target), self._root, body)

    def _put(self, tr: Transaction, item: Any, payload: bytes, cost: int, random: bytes) -> None:
        keys = self._keys
        live = tr.snapshot.get(keys.live)
        last = tr.snapshot.get_range(keys.tasks.start, keys.tasks.stop, limit=1, reverse=True)
        size = count_of(live.value)
        if self._capacity is not None and not admit_to(tr, keys, self._capacity, size, 1, random):
            raise FairQueueFull(item=item, current_size=size, capacity=self._capacity)
        index = next((keys.index_of(entry.key) + 1 for entry in last), 0)
        record = _record(new_id(index, random), len(payload), key_bytes(self._key(item)), cost)
        tr.set(keys.task(record.id), record_to_bytes(record))
        for number, piece in enumerate(pieces_of(payload)):
            tr.set(keys.payload(record.id, number), piece)
        self._fair.ask_put(tr, {record.key})([record])
        tr.add(keys.live, packed(LIVE, {"ready": 1}))

    def _take(self, tr: Transaction) -> tuple[bool, Any]:
        keys = self._keys
        for record in self._fair.first(tr, 1):
            tr.add_read_conflict_key(keys.task(record.id))
            item = self._codec.decode(ask_payload(tr, keys, record)())
            taken = replace(record, state=TaskState.TAKEN)
            self._fair.shift(tr, [record], [taken])
            self._fair.shift(tr, [taken], ())
            tr.clear(keys.task(record.id))
            clear_payload(tr, keys, record)
            tr.add(keys.live, packed(LIVE, {"ready": -1}))
            return True, item
        tr.add_read_conflict_range(keys.ready.start, keys.ready.stop)
        return False, None

    def _look(self, tr: Transaction) -> FairSnapshot:
        more, tasks = limits.BATCH_ITEMS_MAX + 1, self._keys.tasks
        found = tr.snapshot.get_range(tasks.start, tasks.stop, limit=more).to_list()
        if len(found) == more:
            raise too_much(more, 0)
        records = {record.id: record for record in (record_of(entry.value) for entry in found)}
        of_round = list(self._fair.of_this_round(tr, len(records)))
        asked = {id_: ask_payload(tr, self._keys, record) for id_, record in records.items()}
        items = {id_: self._codec.decode(payload()) for id_, payload in asked.items()}
        now = [items[record.id] for record in of_round]
        left = [record for record in records.values() if record not in of_round]
        return FairSnapshot(now, list(_by_key(left, items)))


def _record(id_: bytes, size_bytes: int, key: bytes, cost: int) -> Record:
    return Record(
        id=id_,
        state=TaskState.READY,
        pri=0,
        created_us=0,
        expires_us=NEVER_US,
        ttr_us=NEVER_US,
        size_bytes=size_bytes,
        key=key,
        cost=cost,
    )


def _by_key(records: list[Record], items: Mapping[bytes, Any]) -> Iterator[tuple[Any, list[Any]]]:
    for key in dict.fromkeys(record.key for record in records):
        yield layer.unpack(key)[0], [items[record.id] for record in records if record.key == key]
