"""Looking at a fair queue without changing it: its items in pages, in the order of their arrival."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.fair.items import FairItems
from fdbqueue.page import no_place, place_bytes, place_text, within_bytes
from fdbqueue.records.keys import ID_BYTES, Record, sound_record
from fdbqueue.seam import Transaction
from fdbqueue.tasks.tasks_of import ask_payloads
from fdbqueue.unreadable import shown


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
    Reads, by snapshot: `limit` + 1 items, the head of the round, limits.BATCH_BYTES_MAX of payloads.
    Raises: InvalidArgument.
    """
    records, last = _records(tr, items, limit, _place(after))
    asked = ask_payloads(tr, items.keys, records)
    this_round = [record.id for record in items.looking.of_this_round(tr, limits.BATCH_ITEMS_MAX)]
    there = {record.id: shown(items.codec, payload) for record, payload in zip(records, asked, strict=True)}
    of_round = [id_ for id_ in this_round if id_ in there]
    left = [record for record in records if record.id not in of_round]
    found = FairSnapshot([there[id_] for id_ in of_round], list(_by_key(left, there)))
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


def _by_key(records: Sequence[Record], items: Mapping[bytes, Any]) -> Iterator[tuple[Any, list[Any]]]:
    for key in dict.fromkeys(record.key for record in records):
        yield layer.unpack(key)[0], [items[record.id] for record in records if record.key == key]
