"""The recipe: FoundationDB's queue of (index, random) keys, and how its items reach a waiting line.

    enqueue   the next index is read by snapshot, the key ends in random bytes: two enqueues never conflict
    take      the first items are read serialisably and cleared: two takers of one item conflict
    size      a counter of atomic adds beside each change: exact, conflicts with nothing

Functions of one transaction, each bounded by limits.BATCH_*.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue import limits
from fdbqueue.codec import PayloadCodec
from fdbqueue.line.keys import LineKeys
from fdbqueue.line.shares import Offer
from fdbqueue.line.source import Delivery
from fdbqueue.line.staging import Line, Outcome, Turn
from fdbqueue.occupancy import Occupancy
from fdbqueue.page import Page, no_place, place_text
from fdbqueue.recipe.keys import WHOLE, QueueKeys, payload_bytes, split, suffix, whole
from fdbqueue.seam import KeyValue, Range, Transaction, Value

COUNTER = struct.Struct("<q")

Guard = Callable[[Transaction], Callable[[], None]]


@dataclass(frozen=True)
class Taken:
    """What a plain take came to."""

    values: Sequence[Any] = ()
    cut_short: bool = False  # there may be more, beyond the bounds of one transaction
    wrote: bool = False
    served: Turn | None = None  # what came of passing by the line

    @property
    def is_open(self) -> bool:
        """Whether it can tell neither an item nor that there is none: worth another attempt."""
        again = self.served is not None and self.served.outcome is Outcome.AGAIN
        return not self.values and (self.wrote or again)


class Recipe:
    """The items of one queue; the `Source` of its line."""

    def __init__(
        self, keys: QueueKeys, codec: PayloadCodec, guard: Guard | None = None, root: bytes | None = None
    ) -> None:
        """Without a `guard` the queue is not registered: its subspace may hold keys of something else, and
        those of its `root`.
        """
        occupancy = Occupancy(keys.prefix, keys.is_key, root)
        self.keys = keys
        self.codec = codec
        self.guard = guard or occupancy.ask_until_known
        self._guard_of_all = guard or occupancy.ask
        self.doorbell = keys.size  # 0 -> n is what who is first waits for; n -> 0 leaves nothing to miss
        self.line = Line(LineKeys(keys.line), self)

    def append(self, tr: Transaction, payloads: Sequence[bytes], random: bytes) -> None:
        """Add items at the end, in order.

        Reads the last item and the floor by snapshot; writes the items and the size; conflicts with nothing.
        """
        check = self.guard(tr)
        items, snapshot = self.keys.items, tr.snapshot
        floor = snapshot.get(self.keys.floor)
        last = snapshot.get_range(items.start, items.stop, limit=1, reverse=True).to_list()
        check()
        first = max(self.keys.index_of(last[0].key) + 1 if last else 0, _counter(floor))
        for index, payload in enumerate(payloads, first):
            self._store(tr, suffix(index, random), payload)
        self._add_size(tr, len(payloads))

    def take(self, tr: Transaction, count: int, now_us: int) -> Taken:
        """Remove the first items, up to `count`, whoever else may be waiting.

        Reads the first items serialisably; clears them. Conflicts with whoever takes the same ones; an answer
        of nothing conflicts with an enqueue.
        """
        check = self.guard(tr)
        head, due = self._ask_first(tr, count), self.line.results.ask_due(tr)
        check()
        found, cut_short = _within_bytes(head)
        if not found:
            overdue = self.line.results.overdue(due, now_us)
            if overdue:
                self.line.results.return_overdue(tr, overdue)
                found, cut_short = _within_bytes(self._ask_first(tr, count))
        return self._remove(tr, found, cut_short)

    def take_in_turn(self, tr: Transaction, count: int, now_us: int) -> Taken:
        """Remove the first items in which nobody who waits in the line has a share.

        Reads the first items serialisably; if there is a line, that and them by snapshot. Conflicts with
        other takers of the same items.
        """
        check = self.guard(tr)
        line, items = self.line.keys, self.keys.items
        head = self._ask_first(tr.snapshot, count)
        activity = tr.snapshot.get_range(line.activity.start, line.activity.stop, limit=1).to_list()
        check()
        found, cut_short = _within_bytes(head)
        if activity and (line.is_work(activity[0].key, now_us) or not found):
            return _taken(self.line.pass_by(tr, count, b"", now_us))
        if found:  # only now: whoever passes by does not conflict with one who takes the head
            tr.add_read_conflict_range(items.start, found[-1].key + b"\x00")
        return self._remove(tr, found, cut_short)

    def first(self, tr: Any, count: int) -> list[Any]:
        """The first values, up to `count`, left where they are; `tr` decides whether the reads conflict."""
        check = self.guard(tr)
        head = self._ask_first(tr, count)
        check()
        found, _ = _within_bytes(head)
        return self._values(tr, [(self._suffix(item), item.value) for item in found])

    def page(self, tr: Transaction, limit: int, after: bytes | None) -> Page[Any]:
        """The values behind `after`. Reads by snapshot; conflicts with nothing."""
        items = self.keys.items
        start = items.start if after is None else self._behind(after)
        check = self.guard(tr)
        head = tr.snapshot.get_range(start, items.stop, limit=limit + 1)
        check()
        ahead, cut_short = _within_bytes(head)
        found = [(self._suffix(item), item.value) for item in ahead[:limit]]
        more = cut_short or len(ahead) > limit
        return Page(self._values(tr, found), place_text(found[-1][0]) if more else None)

    def _behind(self, after: bytes) -> bytes:
        """Raises InvalidArgument for a place that is none of an item."""
        item = self.keys.item(after)
        if not self.keys.is_key(item):
            raise no_place(place_text(after))
        return item + b"\x00"

    def any(self, tr: Transaction) -> bool:
        """Whether there is an item. Reads the first one serialisably."""
        check = self.guard(tr)
        head = self._ask_first(tr, 1).to_list()
        check()
        return bool(head)

    def size(self, tr: Transaction) -> int:
        """The number of items. Reads the counter by snapshot; conflicts with nothing."""
        check = self.guard(tr)
        counter = tr.snapshot.get(self.keys.size)
        check()
        return _counter(counter)

    def clear(self, tr: Transaction) -> None:
        """Remove every item, delivered ones too. Aborts whoever takes an item meanwhile.

        Raises SubspaceInUse before it clears keys of something else. Reads one key at each end by snapshot.
        """
        self._guard_of_all(tr)()
        for column in (self.keys.items, self.keys.pieces):
            tr.clear_range(column.start, column.stop)
        tr.clear(self.keys.size)
        self.line.results.clear_all(tr)

    # The line's Source.

    def tidy(self, tr: Transaction) -> bool:  # noqa: ARG002  # the line's interface
        return False

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:  # noqa: ARG002  # the line's interface
        return lambda: None

    def available(self, tr: Transaction, limit: int) -> Iterable[Offer]:
        items = self.keys.items
        first = tr.snapshot.get_range(items.start, items.stop, limit=limit)
        return (Offer(self._suffix(item), item.value, payload_bytes(item.value)) for item in first)

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        for offer in offers:
            tr.add_read_conflict_key(self.keys.item(offer.id))

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:  # noqa: ARG002  # the line's interface
        for offer in offers:
            tr.clear(self.keys.item(offer.id))
        tr.max(self.keys.floor, COUNTER.pack(max(self.keys.index_in(offer.id) for offer in offers) + 1))
        self._add_size(tr, -len(offers))
        return [Delivery(offer.id, offer.value) for offer in offers]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        values = self._values(tr, [(delivery.id, delivery.value) for delivery in deliveries])
        self._clear_pieces(tr, [(delivery.id, delivery.value) for delivery in deliveries])
        return values

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:  # noqa: ARG002  # the line's interface
        return self._removed(tr, [(offer.id, offer.value) for offer in offers])

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            tr.set(self.keys.item(delivery.id), delivery.value)
        self._add_size(tr, len(deliveries))

    # One item.

    def _suffix(self, item: KeyValue) -> bytes:
        return self.keys.suffix_of(item.key)

    def _ask_first(self, tr: Any, count: int) -> Range:
        items = self.keys.items
        found: Range = tr.get_range(items.start, items.stop, limit=count)
        return found

    def _remove(self, tr: Transaction, found: Sequence[KeyValue], cut_short: bool) -> Taken:
        values = self._removed(tr, [(self._suffix(item), item.value) for item in found])
        return Taken(values, cut_short=cut_short, wrote=bool(found))

    def _removed(self, tr: Transaction, items: Sequence[tuple[bytes, bytes]]) -> list[Any]:
        values = self._values(tr, items)
        for name, _ in items:
            tr.clear(self.keys.item(name))
        self._clear_pieces(tr, items)
        self._add_size(tr, -len(items))
        return values

    def _store(self, tr: Transaction, name: bytes, payload: bytes) -> None:
        if len(payload) <= limits.PAYLOAD_PIECE_BYTES_MAX:
            tr.set(self.keys.item(name), whole(payload))
            return
        pieces = list(pieces_of(payload))
        for number, piece in enumerate(pieces):
            tr.set(self.keys.piece(name, number), piece)
        tr.set(self.keys.item(name), split(len(pieces), len(payload)))

    def _values(self, tr: Any, items: Sequence[tuple[bytes, bytes]]) -> list[Any]:
        asked = [value[1:] if value[:1] == WHOLE else self._ask_pieces(tr, name) for name, value in items]
        return [self.codec.decode(part if isinstance(part, bytes) else _joined(part)) for part in asked]

    def _ask_pieces(self, tr: Any, name: bytes) -> Range:
        # By snapshot: whoever removes pieces also removes the key that led here, which is in conflict.
        under = self.keys.pieces_of(name)
        found: Range = getattr(tr, "snapshot", tr).get_range(under.start, under.stop)
        return found

    def _clear_pieces(self, tr: Transaction, items: Sequence[tuple[bytes, bytes]]) -> None:
        for name, value in items:
            if value[:1] != WHOLE:
                under = self.keys.pieces_of(name)
                tr.clear_range(under.start, under.stop)

    def _add_size(self, tr: Transaction, change: int) -> None:
        if change:
            tr.add(self.keys.size, COUNTER.pack(change))


def _taken(served: Turn) -> Taken:
    return Taken(served.answers, cut_short=bool(served.answers), wrote=served.wrote, served=served)


def pieces_of(payload: bytes) -> Iterator[bytes]:
    step = limits.PAYLOAD_PIECE_BYTES_MAX
    return (payload[start : start + step] for start in range(0, len(payload), step))


def _counter(counter: Value) -> int:
    value = counter.value
    return 0 if value is None else COUNTER.unpack(value)[0]


def _joined(pieces: Range) -> bytes:
    return b"".join(piece.value for piece in pieces)


def _within_bytes(items: Range) -> tuple[list[KeyValue], bool]:
    """The first items whose payloads are not too much for one transaction, and whether some were left out."""
    found: list[KeyValue] = []
    total = 0
    for item in items:
        total += payload_bytes(item.value)
        if found and total > limits.BATCH_BYTES_MAX:
            return found, True
        found.append(item)
    return found, False
