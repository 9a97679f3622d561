"""The items of a fair queue: what FairQueue does in one transaction each, and how items reach a waiting line.

The Fair discipline over items that are only ever ready: a task that is taken is gone. Keys as in
records/keys.py, without sessions and timers; in `beside`, 7 is the floor: the index after that of the last
item that the line has handed out, little-endian.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec.structs import replace

from fdbqueue import limits
from fdbqueue.aside import Aside
from fdbqueue.codec import PayloadCodec
from fdbqueue.disciplines.fair import Fair
from fdbqueue.errors import FdbQueueError
from fdbqueue.line.keys import LineKeys
from fdbqueue.line.shares import Offer
from fdbqueue.line.source import Delivery, Untimed
from fdbqueue.line.staging import Line
from fdbqueue.line.take import Taker
from fdbqueue.occupancy import Occupancy
from fdbqueue.passing import Passed, located
from fdbqueue.records.keys import (
    INDEX_BYTES,
    NEVER_US,
    Record,
    TaskKeys,
    id_text,
    new_id,
    record_of,
    record_to_bytes,
    sound_record,
)
from fdbqueue.records.statistics import LIVE, count_of, packed
from fdbqueue.seam import Transaction
from fdbqueue.task import TaskState
from fdbqueue.tasks.capacity import admit_to
from fdbqueue.tasks.key_statistics import KeyStatistics, busiest_keys
from fdbqueue.tasks.mending import NO_RECORD, Mender
from fdbqueue.tasks.payloads import clear_payload, for_record, set_payload
from fdbqueue.tasks.tasks_of import ask_payloads
from fdbqueue.unreadable import NOT_READ

_FLOOR = b"\x07"
FLOOR_MAX = 2**62
"""A floor beyond is damage: no index gets there."""


@dataclass(frozen=True)
class NewItem:
    """An item that is about to be put."""

    payload: bytes
    key: bytes
    cost: int


class FairItems(Untimed):
    """The `Source` of its line."""

    def __init__(
        self,
        keys: TaskKeys,
        codec: PayloadCodec,
        weights: Mapping[str, int] | None,
        root: bytes | None = None,
    ) -> None:
        self.keys = keys
        self.codec = codec
        self.fair = Fair(keys, {"weights": weights})
        self.floor = keys.beside + _FLOOR
        self.looking = Fair(keys, {"weights": weights})
        """The same for listings, which mend nothing."""
        self.aside = Aside(keys.prefix, keys.line)
        self._mender = Mender(keys, self.fair, self.aside)
        self.fair.mend = self._mender.entry
        self.passed = Passed(registered=False)
        self._name = repr(keys.prefix)
        self.guard = Occupancy(keys.prefix, keys.is_key, root).ask_until_known
        self.doorbell = keys.live  # 0 -> n is what who is first waits for; n -> 0 leaves nothing to miss
        self.ready = keys.ready
        self.line = Line(LineKeys(keys.line), self)
        self.taker = Taker(self.line, (self.guard,), self.hand_out)

    def admit(self, tr: Transaction, capacity: int, random: bytes) -> int | None:
        """The size, if that leaves no room for another item; conflicts as `admit_to` does."""
        size = self.size(tr)
        return None if admit_to(tr, self.keys, capacity, size, 1, random) else size

    def append(self, tr: Transaction, news: Sequence[NewItem], random: bytes, now_us: int) -> None:
        """Add items, in order.

        Reads the last item, the floor and how the keys stand by snapshot; writes the items and the size;
        conflicts with what empties or fills a key.
        """
        check, tasks = self.guard(tr), self.keys.tasks
        last = tr.snapshot.get_range(tasks.start, self.keys.index_end, limit=1, reverse=True)
        floor = tr.snapshot.get(self.floor)
        file = self.fair.ask_put(tr, {new.key for new in news})
        check()
        behind = next((self.keys.index_of(entry.key) + 1 for entry in last), 0)
        if not self.passed.codec_is_known:
            self.passed.learn_codec()
        first = max(behind, _floor_of(floor.value))
        records = [_record(new_id(n, random), new, now_us) for n, new in enumerate(news, first)]
        for record, new in zip(records, news, strict=True):
            set_payload(tr, self.keys, record, new.payload)
        self._arrive(tr, records, file)

    def busiest(self, tr: Transaction, limit: int, now_us: int) -> list[KeyStatistics]:
        """The keys of which most items wait. Reads by snapshot; conflicts with nothing."""
        check = self.guard(tr)
        check()
        return busiest_keys(tr, self.fair, limit, now_us)

    def size(self, tr: Transaction) -> int:
        """How many items there are. Reads one key by snapshot."""
        check, live = self.guard(tr), tr.snapshot.get(self.keys.live)
        check()
        return count_of(live.value)

    # The line's Source.

    def available(self, tr: Transaction, limit: int) -> Iterable[Offer]:
        passed = self.passed
        found = self.fair.first(tr, limit + len(passed) if passed else limit)
        return islice(self._offers(tr, found, limit), limit)

    def _offers(self, tr: Transaction, found: Iterable[Record], limit: int) -> Iterator[Offer]:
        passed, seen = self.passed, set()
        while True:
            removed = self._mender.removed
            for record in found:
                if record.id in passed or record.id in seen:
                    continue
                seen.add(record.id)
                yield Offer(record.id, record_to_bytes(record), record.size_bytes, record.key)
            if self._mender.removed == removed:
                return
            found = self.fair.first(tr, limit + len(passed))  # what is behind those set aside

    def require_none_passed(self, tr: Transaction) -> None:
        """Raises the error of the first item that was passed over. Reads the first items by snapshot."""
        if self.passed:
            found = self.looking.first(tr, len(self.passed) + 1)
            self.passed.require_none_of(record.id for record in found)

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        for offer in offers:
            tr.add_read_conflict_key(self.keys.task(offer.id))
        self.fair.claim(tr, _records(offers))

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:  # noqa: ARG002  # the line's interface
        self._depart(tr, _records(offers))
        # One that comes back from a dead caller belongs before all that have come since.
        floor = max(int.from_bytes(offer.id[:INDEX_BYTES], "big") for offer in offers) + 1
        tr.max(self.floor, floor.to_bytes(INDEX_BYTES, "little"))
        return [Delivery(offer.id, offer.value) for offer in offers]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        records = self._sound(tr, deliveries)
        return self._collected(tr, records, ask_payloads(tr, self.keys, records))

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:  # noqa: ARG002  # the line's interface
        records = _records(offers)
        asked = ask_payloads(tr, self.keys, records)  # with the reads of the discipline
        self._depart(tr, records)
        return self._collected(tr, records, asked)

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        self.claim(tr, offers)
        return self.hand_over(tr, offers, params)

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        self._return(tr, self._sound(tr, deliveries))

    # How it is done.

    def _collected(
        self, tr: Transaction, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Any]:
        """The data of items that have left their places, and their payloads with them."""
        decode = self.codec.decode
        try:
            data = [decode(payload()) for payload in asked]
        except NOT_READ:
            return self._sort_out(tr, records, asked)
        if data and not self.passed.codec_is_known:
            self.passed.learn_codec()
        for record in records:
            clear_payload(tr, self.keys, record)
        return data

    def _sort_out(
        self, tr: Transaction, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Any]:
        """The same where some cannot be read: an item that nobody can read is set aside, one that others may
        read goes back, and is passed over from now on.
        """
        data, errors = [], {}
        for record, payload in zip(records, asked, strict=True):
            try:
                data.append(self.codec.decode(payload()))
            except NOT_READ as error:
                errors[record.id] = located(error, self._name, id_text(record.id))
        if data and not self.passed.codec_is_known:
            self.passed.learn_codec()
        for record in records:
            why = errors.get(record.id)
            if why is not None and not self.passed.is_damage(why):
                self._return(tr, [record])
                self.passed.note(record.id, why)
                continue
            if why is not None:
                self._set_aside(tr, record, why)
            clear_payload(tr, self.keys, record)
        return data

    def _sound(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Record]:
        """The records of items that were handed out; one that is damaged is set aside."""
        found = [(delivery, sound_record(delivery.value, delivery.id)) for delivery in deliveries]
        for delivery, record in found:
            if record is None:
                under = self.keys.payloads_of(delivery.id)
                pieces = tr.snapshot.get_range(under.start, under.stop, limit=limits.ASIDE_PARTS_MAX)
                values = [delivery.value, *(bytes(piece.value) for piece in pieces)]
                self.aside.put(tr, self.keys.task(delivery.id), values, NO_RECORD)
                tr.clear_range(under.start, under.stop)
        return [record for _, record in found if record is not None]

    def _set_aside(self, tr: Transaction, record: Record, error: FdbQueueError) -> None:
        under = self.keys.payloads_of(record.id)
        pieces = tr.snapshot.get_range(under.start, under.stop, limit=limits.ASIDE_PARTS_MAX)
        values = [record_to_bytes(record), *(bytes(piece.value) for piece in pieces)]
        self.aside.put(tr, self.keys.task(record.id), values, str(error))

    def _return(self, tr: Transaction, records: Sequence[Record]) -> None:
        self._arrive(tr, records, self.fair.ask_put(tr, {record.key for record in records}))

    def _arrive(
        self, tr: Transaction, records: Sequence[Record], file: Callable[[Sequence[Record]], None]
    ) -> None:
        for record in records:
            tr.set(self.keys.task(record.id), record_to_bytes(record))
        file(records)
        tr.add(self.keys.live, packed(LIVE, {"ready": len(records)}))

    def _depart(self, tr: Transaction, records: Sequence[Record]) -> None:
        if not records:
            return
        taken = [replace(record, state=TaskState.TAKEN) for record in records]
        self.fair.shift(tr, records, taken)
        self.fair.shift(tr, taken, ())
        for record in records:
            tr.clear(self.keys.task(record.id))
        tr.add(self.keys.live, packed(LIVE, {"ready": -len(records)}))


def _record(id_: bytes, new: NewItem, now_us: int) -> Record:
    return Record(
        id=id_,
        state=TaskState.READY,
        pri=0,
        created_us=now_us,
        expires_us=NEVER_US,
        ttr_us=NEVER_US,
        size_bytes=len(new.payload),
        payload=for_record(new.payload),
        key=new.key,
        cost=new.cost,
    )


def _floor_of(value: bytes | None) -> int:
    floor = int.from_bytes(value or b"", "little")
    return floor if floor < FLOOR_MAX else 0


def _records(entries: Sequence[Offer] | Sequence[Delivery]) -> list[Record]:
    return [record_of(entry.value) for entry in entries]
