"""The items of a fair queue as the source of its line: handing out an item removes it.

A fair item is a task that is only ever ready: taking it removes it. Its keys are those of a task queue
(records/keys.py) without sessions, timers and counts of calls. In `beside`, 7 is the floor: the index behind
that of every item that the line has handed out, little-endian.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.line.decision import Delivery, LineKeys, Offer, Untimed
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.registry import Definition, Registry, SubspaceGuard
from fdbqueue.core.seam import Transaction
from fdbqueue.core.unreadable import NOT_READ, Passed, located
from fdbqueue.tasks import edges
from fdbqueue.tasks.capacity import admit
from fdbqueue.tasks.change import Change, ask_payloads, clear_payload
from fdbqueue.tasks.looking import KeyStatistics, busiest_keys
from fdbqueue.tasks.options import Draft, Settings
from fdbqueue.tasks.ready import Ready
from fdbqueue.tasks.shape import NO_RECORD, Shape
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import (
    INDEX_BYTES,
    NEVER_US,
    Record,
    TaskKeys,
    count_of,
    id_text,
    record_to_bytes,
    sound_record,
)

_FLOOR = b"\x07"
FLOOR_MAX = 2**62
"""A floor beyond is damage: no index gets there."""


def draft(payload: bytes, key: bytes, cost: int) -> Draft:
    return Draft(None, payload, 0, key, cost, NEVER_US, NEVER_US, 0)


class Handed(NamedTuple):
    item: Any
    cost: int


class FairItems(Untimed):
    """The `Source` of its line."""

    def __init__(
        self, registry: Registry, keys: TaskKeys, codec: PayloadCodec, weights: Mapping[str, int] | None
    ) -> None:
        definition = Definition(repr(keys.prefix), 0, "fair", Settings(weights=weights).to_options())
        self.name = definition.name
        self.guard = SubspaceGuard(keys.prefix, keys.is_key, registry.keys.prefix).ask_until_known
        self.shape = Shape(registry, definition, keys, self.guard, codec)
        self.keys = keys
        self.codec = codec
        self.floor = keys.beside + _FLOOR
        self.looking = Fair(keys, definition.options)
        """The discipline for listings, which mend nothing."""
        self.aside = self.shape.aside
        self.passed = Passed(registered=False)
        self._offered = Ready(self.shape, self.passed)
        self.claim = self._offered.claim
        self.doorbell = keys.live  # an item that becomes available raises it
        self.ready = keys.ready
        self.line = Line(LineKeys(keys.line), self)
        self.taker = Taker(self.line, (self.guard,), self.hand_out)

    def admit(self, tr: Transaction, capacity: int, random: bytes) -> int | None:
        """The size, if that leaves no room for another item. Conflicts: as `admit`."""
        size = self.size(tr)
        return None if admit(tr, self.keys, capacity, size, 1, random) else size

    def append(self, tr: Transaction, drafts: Sequence[Draft], random: bytes, now_us: int) -> None:
        check, keys, change = self.guard(tr), self.keys, Change(tr, self.shape, now_us)
        last = tr.snapshot.get_range(keys.own_tasks.start, keys.own_tasks.stop, limit=1, reverse=True)
        floor = tr.snapshot.get(self.floor)
        change.ask_create({draft.key for draft in drafts})
        check()
        behind = next((keys.index_of(entry.key) + 1 for entry in last), 0)
        if not self.passed.codec_is_known:
            self.passed.learn_codec()
        edges.put(change, drafts, max(behind, _floor_of(floor.value)), random, counts=False)
        change.finish()

    def busiest(self, tr: Transaction, limit: int, now_us: int) -> list[KeyStatistics]:
        """The keys with the most items. Reads by snapshot. Conflicts: none."""
        check = self.guard(tr)
        check()
        return busiest_keys(tr, self.looking, limit, now_us)

    def size(self, tr: Transaction) -> int:
        """The number of items. Reads one key by snapshot. Conflicts: none."""
        check, live = self.guard(tr), tr.snapshot.get(self.keys.live)
        check()
        return count_of(live.value)

    # The line's Source.

    def doorbells(self) -> Sequence[bytes]:
        return (self.doorbell,)

    def available(self, tr: Transaction, limit: int, now_us: int) -> Iterable[Offer]:
        return self._offered.ask(tr, limit, now_us)

    def require_none_passed(self, tr: Transaction) -> None:
        self._offered.require_none_passed(tr)

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:  # noqa: ARG002  # the line's interface
        self._consume(tr, [offer.item for offer in offers])
        # An item that comes back from a dead caller belongs before all items that are put meanwhile.
        floor = max(int.from_bytes(offer.id[:INDEX_BYTES], "big") for offer in offers) + 1
        tr.max(self.floor, floor.to_bytes(INDEX_BYTES, "little"))
        return [Delivery(offer.id, offer.value) for offer in offers]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Handed]:
        records = self._sound(tr, deliveries)
        return self._collected(tr, records, ask_payloads(tr, self.keys, records))

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Handed]:  # noqa: ARG002  # the line's interface
        records = [offer.item for offer in offers]
        asked = ask_payloads(tr, self.keys, records)  # with the reads of the discipline
        self._consume(tr, records)
        return self._collected(tr, records, asked)

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Handed]:
        self.claim(tr, offers)
        return self.hand_over(tr, offers, params)

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        self._restore(tr, self._sound(tr, deliveries))

    # Items that have left their places.

    def _consume(self, tr: Transaction, records: Sequence[Record]) -> None:
        change = self._change(tr)
        change.consume(records)
        change.finish()

    def _restore(self, tr: Transaction, records: Sequence[Record]) -> None:
        change = self._change(tr)
        change.restore(records)
        change.finish()

    def _change(self, tr: Transaction) -> Change:
        return Change(tr, self.shape, now_us=0)  # the time counts for new items only

    def _collected(
        self, tr: Transaction, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Handed]:
        decode = self.codec.decode
        try:
            handed = [
                Handed(decode(payload()), record.cost) for record, payload in zip(records, asked, strict=True)
            ]
        except NOT_READ:
            return self._sort_out(tr, records, asked)
        if handed and not self.passed.codec_is_known:
            self.passed.learn_codec()
        for record in records:
            clear_payload(tr, self.keys, record)
        return handed

    def _sort_out(
        self, tr: Transaction, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Handed]:
        """The items that can be read. Other items are set aside, or go back to be passed over."""
        payloads = zip(records, asked, strict=True)
        stored = [(record.id, id_text(record.id), payload) for record, payload in payloads]
        found = self.passed.sort_out(self.codec, self.shape.name, stored, partial(self._offered.head, tr))
        for record in records:
            if record.id in found.damaged:
                error = located(found.damaged[record.id], self.shape.name, id_text(record.id))
                self._set_aside(tr, record.id, record_to_bytes(record), str(error))
            elif record.id in found.data:
                clear_payload(tr, self.keys, record)
        self._restore(tr, [record for record in records if record.id in found.passed])
        return [Handed(found.data[record.id], record.cost) for record in records if record.id in found.data]

    def _sound(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Record]:
        """The records of items that were handed out. A damaged record is set aside."""
        records: list[Record] = []
        for delivery in deliveries:
            record = sound_record(delivery.value, delivery.id)
            if record is None:
                self._set_aside(tr, delivery.id, delivery.value, NO_RECORD)
            else:
                records.append(record)
        return records

    def _set_aside(self, tr: Transaction, id_: bytes, record: bytes, reason: str) -> None:
        under = self.keys.payloads_of(id_)
        self.aside.put(tr, self.keys.task(id_), [record], reason, under)
        tr.clear_range(under.start, under.stop)


def _floor_of(value: bytes | None) -> int:
    floor = int.from_bytes(value or b"", "little")
    return floor if floor < FLOOR_MAX else 0
