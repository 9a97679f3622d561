"""The recipe: FoundationDB's queue of (index, random) keys, and how its items reach a waiting line.

    enqueue   the next index is read by snapshot, the key ends in random bytes: two enqueues never conflict
    take      the head is read, up to the last item taken, and cleared: two takers of one item conflict
    size      a counter of atomic adds beside each change: exact, conflicts with nothing

Functions of one transaction, each bounded by limits.BATCH_*.

Keys of a recipe queue: the only file that builds or parses them (those of its line: line/decision.py).
Queue S. The `suffix` of an item is its packed (index, random): its id, wherever it is stored. The comment of
a column has its parts and its value, and behind the semicolon its readers. S[37] is the layout of a queue
without a definition: see core/registry.py.

A stored payload is WHOLE and the payload, or SPLIT and its packed (pieces, bytes). Delivering an item moves
it into the line under its suffix; its pieces stay in place. The floor is above the index of each delivered
item. Without a floor, the index would restart at 0 when the queue is empty, and an item that comes back would
stand behind items that were enqueued after it. A value that is given back stands below the first index, also
below 0.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import call, itemgetter
from typing import TYPE_CHECKING, Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.codec import PayloadCodec, pieces_of
from fdbqueue.core.columns import UNPACKING, Column, Table, unpacked
from fdbqueue.core.errors import FdbQueueError, PayloadUnknown, PayloadUnreadable
from fdbqueue.core.line.decision import Delivery, LineKeys, Offer, Untimed
from fdbqueue.core.line.staging import Line, Taken
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.page import Page, no_place, place_text
from fdbqueue.core.partitions import Current, Flag, SharedKeys
from fdbqueue.core.registry import Guard, SubspaceGuard
from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.core.unreadable import NOT_READ, Aside, Passed, located, shown

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.state import Gate


S = Table()
ITEM = S.packed(0, int, bytes)  # index, random: stored payload; takes; enqueue, the last one by snapshot
PIECE = S.packed(1, int, bytes, int)  # index, random, piece: part of a payload; takes and looks at its item
SIZE = S.packed(2)  # little-endian; size(); watches of the first request
FLOOR = S.packed(4)  # little-endian, grows; enqueue, by snapshot
LINE: Column[()] = Column(3, ())  # see line/decision.py

WHOLE, SPLIT = b"\x00", b"\x01"
FORMATS_RESERVED = 16
"""A newer release wrote a stored payload that begins with another byte below this number."""
INDEX_MAX = 2**62
"""Above every index. The indexes behind a valid one must fit into a key, and into the floor."""

_SHAPES = {column: [*column.parts] for column in S.columns}
_LINE_COLUMN_CODES = (layer.pack((0,)), layer.pack((1,))[:1])
"""First byte of the packed column numbers of a line."""


class QueueKeys:
    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        self.prefix = prefix
        self.item, self.items = ITEM.start(prefix).__add__, ITEM.all(prefix)
        self.suffix_of = itemgetter(slice(len(ITEM.start(prefix)), None))
        self._piece, self.pieces = PIECE.start(prefix), PIECE.all(prefix)
        self.size, self.floor, self.line = SIZE.start(prefix), FLOOR.start(prefix), LINE.start(prefix)

    def is_key(self, key: bytes) -> bool:
        """True if `key` may be one of this queue; its subspace may hold keys of something else."""
        if key.startswith(self.line):
            return key[len(self.line) :].startswith(_LINE_COLUMN_CODES)
        return self.parts_of(key)[0] is not None

    def parts_of(self, key: bytes) -> tuple[int | None, bytes]:
        """The number of the key's column, and the suffix of its item; None for a key of another shape."""
        if key.startswith(self.line):
            return LINE, b""
        column, *rest = unpacked(key, len(self.prefix)) or (None,)
        if _SHAPES.get(column) != [type(part) for part in rest]:
            return None, b""
        return column, suffix(*rest[:2]) if rest else b""

    def index_of(self, item_key: bytes) -> int | None:
        return self.index_in(self.suffix_of(item_key))

    def index_in(self, suffix: bytes) -> int | None:
        """The index in a suffix; None if the key is damaged. Its payload may be sound all the same."""
        try:
            index = layer.unpack(suffix)[0]
        except UNPACKING:
            return None
        return index if isinstance(index, int) and -INDEX_MAX < index < INDEX_MAX else None

    def piece(self, suffix: bytes, number: int) -> bytes:
        key: bytes = self._piece + suffix + layer.pack((number,))
        return key

    def pieces_of(self, suffix: bytes) -> slice:
        under = self._piece + suffix
        return slice(under, under + b"\xff")


def suffix(index: int, random: bytes) -> bytes:
    packed: bytes = layer.pack((index, random))
    return packed


def whole(payload: bytes) -> bytes:
    return WHOLE + payload


def split(pieces: int, size_bytes: int) -> bytes:
    header: bytes = SPLIT + layer.pack((pieces, size_bytes))
    return header


def payload_bytes(value: bytes) -> int:
    """Bytes of a payload, stored here or in pieces, according to the value of its item."""
    return len(value) - 1 if value[:1] == WHOLE else split_sizes(value)[1]


def split_sizes(value: bytes) -> tuple[int, int]:
    """The numbers of pieces and bytes of a split payload; 0 and 0 if the value is damaged."""
    try:
        pieces, size_bytes = layer.unpack(value, prefix_len=1)
    except UNPACKING:
        return 0, 0
    sound = value[:1] == SPLIT and isinstance(pieces, int) and isinstance(size_bytes, int)
    return (pieces, size_bytes) if sound and 0 < size_bytes <= limits.PAYLOAD_BYTES_MAX else (0, 0)


COUNTER = struct.Struct("<q")

Item = Offer | Delivery
"""An item: its id is the suffix of its key, its value is stored under that key."""
Readings = tuple[list[Any], Collection[bytes], Collection[bytes]]
"""Values of decoded items; ids of items that stay, as another process may decode them; of damaged items."""


class Recipe(Untimed):
    def __init__(
        self,
        keys: QueueKeys,
        codec: PayloadCodec,
        guard: Guard | None = None,
        root: bytes | None = None,
        name: str = "",
        partition: int = 0,
        current: Current | None = None,
        shared: SharedKeys | None = None,
        aside: Aside | None = None,
    ) -> None:
        """A queue without a `guard` is not registered: its subspace may hold foreign keys, and those of its
        `root`. `name` is for messages. `keys` are those of the partition `partition`. `current`: the plan of
        a queue that may have partitions; `shared` are the keys that all of them share. `aside`: the place
        for values that cannot be read, if that is not in the line of this partition.
        """
        bare = SubspaceGuard(keys.prefix, keys.is_key, root)
        self.keys = keys
        self.codec = codec
        self.guard = guard or bare.ask_until_known
        if partition and current is not None:
            self.guard = partial(current.guard_of, partition)
        self._guard_of_all = guard or bare.ask
        self.doorbell = keys.size  # the first request waits for 0 -> n; after n -> 0 there is no item to miss
        self.ready = keys.items
        self.line = Line(LineKeys(keys.line), self)
        self.taker = Taker(self.line, (self.guard,), self.hand_out, self.hand_out_beside)
        self.aside = aside or Aside(keys.prefix, keys.line)
        self.passed = Passed(registered=guard is not None)
        self.name = name or repr(keys.prefix)
        self.registered = guard is not None
        self.partition = partition
        self._current = current
        self._shared = shared

    def append(self, tr: Transaction, payloads: Sequence[bytes], random: bytes) -> None:
        check, current = self.guard(tr), self._current
        flag = None if current is None or current.plan is None else self._flag(tr)
        items, snapshot = self.keys.items, tr.snapshot
        floor = snapshot.get(self.keys.floor)
        last = snapshot.get_range(items.start, items.stop, limit=1, reverse=True).to_list()
        check()
        index = self.keys.index_of(last[0].key) if last else -1
        first = (self._last_index(tr) if index is None else index) + 1
        if floor.value:
            first = max(first, floor_of(floor.value))
        if not self.passed.codec_is_known:
            self.passed.learn_codec()
        for index, payload in enumerate(payloads, first):
            self._store(tr, suffix(index, random), payload)
        self._add_size(tr, len(payloads))
        if flag is not None:
            flag.set()

    def _flag(self, tr: Transaction) -> Flag | None:
        """The flag of this partition, which has been asked for; None without partitions.

        Call it after the guard: then it goes by the plan that the guard checks, or by a newer one.
        """
        if self._shared is None or self._current is None or self._current.plan is None:
            return None
        flag = Flag(tr, self._shared, self.partition)
        flag.ask()
        return flag

    def prepend(self, tr: Transaction, payloads: Sequence[bytes], random: bytes) -> None:
        check, flag = self.guard(tr), self._flag(tr)
        items, snapshot = self.keys.items, tr.snapshot
        floor = snapshot.get(self.keys.floor)
        head = snapshot.get_range(items.start, items.stop, limit=1).to_list()
        check()
        index = self.keys.index_of(head[0].key) if head else floor_of(floor.value)
        before = (index or 0) - 1
        for number, payload in enumerate(payloads):
            self._store(tr, suffix(before, random + struct.pack(">H", number)), payload)
        self._add_size(tr, len(payloads))
        if flag is not None:
            flag.set()

    def take(self, tr: Transaction, count: int, now_us: int) -> Taken:
        """Remove the first items, up to `count`, for the transaction of a caller."""
        taken = self.taker.take(tr, count, b"", now_us)
        if len(taken.values) < count and not taken.cut_short:
            tr.add_read_conflict_range(self.ready.start, self.ready.stop)
        return taken

    def first(self, tr: Any, count: int) -> list[Any]:
        """The first `count` values, which stay. The reads conflict unless `tr` is a snapshot."""
        check = self.guard(tr)
        items = self.keys.items
        head = tr.get_range(items.start, items.stop, limit=count)
        check()
        found, _ = _within_bytes(head)
        return [self._value(item) for item in self._ask_payloads(tr, _items(self, found))]

    def page(self, tr: Transaction, limit: int, after: bytes | None) -> Page[Any]:
        """The values behind `after`. Reads by snapshot. Conflicts: none."""
        items = self.keys.items
        start = items.start if after is None else self._behind(after)
        check = self.guard(tr)
        head = tr.snapshot.get_range(start, items.stop, limit=limit + 1)
        check()
        ahead, cut_short = _within_bytes(head)
        found = _items(self, ahead[:limit])
        more = cut_short or len(ahead) > limit
        self.codec.require()
        values = [shown(self.codec, payload) for _, payload in self._ask_payloads(tr, found)]
        return Page(values, place_text(found[-1].id) if more else None)

    def _behind(self, after: bytes) -> bytes:
        """The key behind the place `after`. Raises: InvalidArgument if it cannot be the place of an item."""
        item = self.keys.item(after)
        if not self.keys.is_key(item):
            raise no_place(place_text(after))
        return item + b"\x00"

    def any(self, tr: Transaction) -> bool:
        """True if there is an item. Reads the first one serialisably."""
        check = self.guard(tr)
        items = self.keys.items
        head = tr.get_range(items.start, items.stop, limit=1).to_list()
        check()
        return bool(head)

    def clear(self, tr: Transaction) -> None:
        """Remove every item, and those that were delivered to requests; abort every take of the same time.

        Raises: SubspaceInUse, before it clears foreign keys.
        """
        self._guard_of_all(tr)()
        for column in (self.keys.items, self.keys.pieces):
            tr.clear_range(column.start, column.stop)
        tr.clear(self.keys.size)
        self.line.results.clear_all(tr)

    # The line's Source.

    def doorbells(self) -> Sequence[bytes]:
        return (self.doorbell,)

    def available(
        self,
        tr: Transaction,
        limit: int,
        now_us: int,  # noqa: ARG002  # the line's interface
        gate: "Gate | None" = None,  # noqa: ARG002  # as for tasks
    ) -> Iterable[Offer]:
        # A copy: another thread may note an item meanwhile, for which the reply has no room.
        items, passed, suffix_of = self.keys.items, {*self.passed}, self.keys.suffix_of
        rows = tr.snapshot.get_range(items.start, items.stop, limit=limit + len(passed))
        offers = map(partial(_offer, suffix_of), chain(rows))  # as `read_index` of tasks
        return islice((offer for offer in offers if offer.id not in passed), limit) if passed else offers

    def require_none_passed(self, tr: Any) -> None:
        """Raise the error of the first item that was passed over. Reads the first items."""
        if self.passed:
            self.passed.require_none_of(self._head(tr, len(self.passed) + 1))

    def _head(self, tr: Any, count: int) -> Iterator[bytes]:
        items = self.keys.items
        return (self.keys.suffix_of(row.key) for row in tr.get_range(items.start, items.stop, limit=count))

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        for offer in offers:
            tr.add_read_conflict_key(self.keys.item(offer.id))

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:  # noqa: ARG002  # the line's interface
        for offer in offers:
            tr.clear(self.keys.item(offer.id))
        # An item that was given back may have an index below 0. The database compares without signs.
        last = max(0, *(self.keys.index_in(offer.id) or 0 for offer in offers))
        tr.max(self.keys.floor, COUNTER.pack(last + 1))
        self._add_size(tr, -len(offers))
        return [Delivery(offer.id, offer.value) for offer in offers]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        values, left, _ = self._read(tr, deliveries)
        self.give_back(tr, [delivery for delivery in deliveries if delivery.id in left])
        for delivery in deliveries:
            if delivery.id not in left and delivery.value[:1] != WHOLE:
                self._clear_pieces(tr, delivery)
        return values

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:  # noqa: ARG002  # the line's interface
        values, left, _ = self._read(tr, offers)
        self._remove(tr, [offer for offer in offers if offer.id not in left] if left else offers)
        return values

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Remove the first items.

        Conflicts: every change at the head of the queue, up to the last of these items.
        """
        tr.add_read_conflict_range(self.ready.start, self.keys.item(offers[-1].id) + b"\x00")
        return self.hand_over(tr, offers, params)

    def hand_out_beside(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Remove items behind others. Conflicts: every use of these items."""
        self.claim(tr, offers)
        return self.hand_over(tr, offers, params)

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        flag = self._flag(tr) if deliveries else None
        if flag is not None:
            flag.set()
        for delivery in deliveries:
            tr.set(self.keys.item(delivery.id), delivery.value)
        self._add_size(tr, len(deliveries))

    # One item.

    def _last_index(self, tr: Transaction) -> int:
        """The index in the last valid key of an item; -1 without one."""
        items = self.keys.items
        before = tr.snapshot.get_range(items.start, items.stop, limit=limits.SEARCHED_MAX, reverse=True)
        known = (self.keys.index_of(item.key) for item in before)
        return next((number for number in known if number is not None), -1)

    def _remove(self, tr: Transaction, items: Sequence[Item]) -> None:
        for item in items:
            tr.clear(self.keys.item(item.id))
            if item.value[:1] != WHOLE:
                self._clear_pieces(tr, item)
        self._add_size(tr, -len(items))

    def hold_back(self, tr: Transaction, offers: Sequence[Offer]) -> tuple[list[Offer], list[Any]]:
        """Claim the offers. Return those that can be decoded, and their values; set damaged items aside."""
        self.claim(tr, offers)
        values, left, damaged = self._read(tr, offers)
        self._remove(tr, [offer for offer in offers if offer.id in damaged])
        return [offer for offer in offers if offer.id not in left and offer.id not in damaged], values

    def _store(self, tr: Transaction, name: bytes, payload: bytes) -> None:
        if len(payload) <= limits.PAYLOAD_PIECE_BYTES_MAX:
            tr.set(self.keys.item(name), whole(payload))
            return
        pieces = list(pieces_of(payload))
        for number, piece in enumerate(pieces):
            tr.set(self.keys.piece(name, number), piece)
        tr.set(self.keys.item(name), split(len(pieces), len(payload)))

    def _read(self, tr: Transaction, items: Sequence[Item]) -> Readings:
        """Decode items that leave their places. Set damaged ones aside."""
        asked = [
            item.value[1:].__bytes__ if item.value[:1] == WHOLE else self._ask_pieces(tr, item.id, item.value)
            for item in items
        ]
        try:
            values = list(map(self.codec.decode, map(call, asked)))
        except NOT_READ:
            return self._sort_out(tr, items)
        if values and not self.passed.codec_is_known:
            self.passed.learn_codec()
        return values, (), ()

    def _sort_out(self, tr: Transaction, items: Sequence[Item]) -> Readings:
        keys = self.keys
        stored = [(id_, keys.item(id_).hex(), payload) for id_, payload in self._ask_payloads(tr, items)]
        found = self.passed.sort_out(self.codec, self.name, stored, partial(self._head, tr.snapshot))
        for item in items:
            if item.id in found.damaged:
                self._set_aside(tr, item.id, item.value, found.damaged[item.id])
        return list(found.data.values()), found.passed, found.damaged

    def _set_aside(self, tr: Transaction, name: bytes, value: bytes, error: FdbQueueError) -> None:
        under, key = self.keys.pieces_of(name), self.keys.item(name)
        self.aside.put(tr, key, [value], str(located(error, self.name, key.hex())), under)
        tr.clear_range(under.start, under.stop)  # a damaged value may not tell that there are pieces

    def _value(self, item: tuple[bytes, Callable[[], bytes]]) -> Any:
        name, payload = item
        try:
            return self.codec.decode(payload())
        except NOT_READ as error:
            raise located(error, self.name, self.keys.item(name).hex()) from error

    def _ask_payloads(self, tr: Any, items: Iterable[Item]) -> list[tuple[bytes, Callable[[], bytes]]]:
        return [(item.id, self._ask_payload(tr, item.id, item.value)) for item in items]

    def _ask_payload(self, tr: Any, name: bytes, value: bytes) -> Callable[[], bytes]:
        return (lambda: value[1:]) if value[:1] == WHOLE else self._ask_pieces(tr, name, value)

    def _ask_pieces(self, tr: Any, name: bytes, value: bytes) -> Callable[[], bytes]:
        # By snapshot: a transaction that removes pieces also removes the item's key, which conflicts.
        under = self.keys.pieces_of(name)
        found: Range = getattr(tr, "snapshot", tr).get_range(under.start, under.stop)
        return lambda: _joined(value, found)

    def _clear_pieces(self, tr: Transaction, item: Item) -> None:
        under = self.keys.pieces_of(item.id)
        tr.clear_range(under.start, under.stop)

    def _add_size(self, tr: Transaction, change: int) -> None:
        if change:
            tr.add(self.keys.size, COUNTER.pack(change))


def _offer(suffix_of: Callable[[bytes], bytes], row: KeyValue) -> Offer:
    return Offer(suffix_of(row.key), row.value, payload_bytes(row.value))


def size_of(value: bytes | None) -> int:
    """The number in a counter. A damaged one may have any length."""
    return int.from_bytes((value or b"")[: COUNTER.size], "little", signed=True)


def floor_of(value: bytes | None) -> int:
    floor = size_of(value)
    return floor if 0 <= floor < INDEX_MAX else 0


def _items(recipe: Recipe, found: Iterable[KeyValue]) -> list[Delivery]:
    return [Delivery(recipe.keys.suffix_of(item.key), item.value) for item in found]


def _joined(value: bytes, pieces: Range) -> bytes:
    count, size_bytes = split_sizes(value)
    if not count and value and value[0] < FORMATS_RESERVED and value[:1] != SPLIT:
        raise PayloadUnknown(codec="any", reason=f"storage format {value[0]}")
    payload = b"".join(piece.value for piece in pieces) if count else b""
    if not count or len(payload) != size_bytes:
        reason = f"{len(payload)} of its {size_bytes} bytes are there" if count else "its header is damaged"
        raise PayloadUnreadable(codec="any", reason=reason)
    return payload


def _within_bytes(items: Iterable[KeyValue]) -> tuple[list[KeyValue], bool]:
    """The first items that one transaction can read, and true if others are left out."""
    found: list[KeyValue] = []
    total = 0
    for item in items:
        total += payload_bytes(item.value)
        if found and total > limits.BATCH_BYTES_MAX:
            return found, True
        found.append(item)
    return found, False
