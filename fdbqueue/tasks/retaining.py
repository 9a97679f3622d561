"""Ended tasks of a queue with `retain_s`: kept for that long, at most limits.RETAINED_MAX, without data.

The transaction that ends a task writes its outcome, without a read. A sweep removes the entries that are too
old, or too many. A queue without `retain_s` has none of these keys, and pays nothing.

Looks at the ended tasks that a queue keeps: one by its id, or pages, the latest first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.errors import TaskNotFound, UnsupportedOption
from fdbqueue.core.page import Page, no_place, place_bytes, place_text
from fdbqueue.core.partitions import TIME_BYTES
from fdbqueue.core.rows import (
    Batch,
    Check,
    ContentLine,
    Count,
    Flaw,
    OfColumn,
    Row,
    Section,
    Tally,
    read_as,
    readable,
)
from fdbqueue.core.seam import KeyValue, Transaction, Value
from fdbqueue.core.task import EndedTask
from fdbqueue.core.unreadable import COUNTER, DAMAGED, count_in
from fdbqueue.tasks.change import Change, key_in
from fdbqueue.tasks.feature import End, Feature, Site
from fdbqueue.tasks.rows import FeatureRows
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import (
    ENDED,
    ENDED_AT,
    ENDED_OF,
    HANDED_OFF,
    ID_BYTES,
    Record,
    TaskKeys,
    id_in,
    id_text,
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An ended task as stored. Append fields with a default; never reorder them."""

    outcome: str
    ended_us: int
    created_us: int
    taken_us: int
    attempts: int
    failures: int
    key: bytes
    pri: int
    session: bytes


_to_bytes = msgspec.msgpack.Encoder().encode
entry_of = msgspec.msgpack.Decoder(Entry).decode
"""Decode an entry. Raises one of aside.DAMAGED for damaged bytes."""


class EndedLine(ContentLine, tag="ended"):
    """An ended task that a queue with `retain_s` keeps, in an export."""

    partition: int
    id: bytes
    value: bytes


class EndedRows(FeatureRows):
    """An ended task has an entry by id, one by time, and one by task key."""

    lines = (EndedLine,)

    def sections(self) -> Iterator[Section]:
        yield Section(self._keys.all_ended, self._read)

    def _read(self, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
        lines = [EndedLine(self._keys.partition, id_in(row.key), bytes(row.value)) for row in rows]
        return Batch(lines, len(rows), {"ended": len(lines)})

    def place(self, tr: Transaction, lines: Sequence[ContentLine]) -> None:
        for line in lines:
            if isinstance(line, EndedLine):
                keys, entry = self.part(line.partition).keys, read_as(entry_of, line.value)
                tr.set(keys.ended(line.id), line.value)
                tr.set(keys.ended_at(entry.ended_us, line.id), entry.key)
                if entry.key:
                    tr.set(keys.ended_of(entry.key, entry.ended_us, line.id), b"")
                _count(tr, keys, 1)

    def columns(self) -> dict[int, OfColumn]:
        return {ENDED: self._ended, ENDED_AT: self._index, ENDED_OF: self._index}

    def counts(self) -> Iterator[Count]:
        keys = self._keys
        yield Count("ended tasks", Tally({"ended": keys.all_ended}, keys.ended_count, keys.has_shape))

    def _ended(self, row: Row, id_: bytes) -> Check:
        entry = readable(entry_of, row.value)
        if entry is None:
            yield self.found(Flaw.VALUE, row, f"The entry of the ended task {id_text(id_)} cannot be read.")
            return
        indexes = self._indexes(entry, id_)
        if not all(map((yield indexes).has, indexes)):
            text = f"No listing, or no sweep, finds the ended task {id_text(id_)}."
            yield self.found(Flaw.STATE, row, text, dict(zip(indexes, [entry.key, b""], strict=False)))

    def _index(self, row: Row, _: bytes) -> Check:
        id_ = id_in(row.key)
        stored = (yield [self._keys.ended(id_)]).value(self._keys.ended(id_))
        entry = readable(entry_of, stored)
        if stored is None or (entry is not None and row.key not in self._indexes(entry, id_)):
            text = f"A listing of ended tasks has the task {id_text(id_)}, which is not kept there."
            yield self.found(Flaw.STRAY, row, text)

    def _indexes(self, entry: Entry, id_: bytes) -> list[bytes]:
        by_time = self._keys.ended_at(entry.ended_us, id_)
        return [by_time, self._keys.ended_of(entry.key, entry.ended_us, id_)] if entry.key else [by_time]


class Retention(Feature):
    rows = EndedRows
    in_each_part = True

    def __init__(self, settings: Any, *_: Any) -> None:
        self._retain_us = retain_us_of(settings)

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:
        """Keep tasks that end. Writes: two keys each, three with a task key; the number."""
        if not end.outcome:
            return
        tr, keys, now_us = site.tr, site.keys, site.now_us
        for record in records:
            tr.set(keys.ended(record.id), _to_bytes(_entry(record, end.outcome, now_us)))
            tr.set(keys.ended_at(now_us, record.id), record.key)
            if record.key:
                tr.set(keys.ended_of(record.key, now_us, record.id), b"")
        _count(tr, keys, len(records))

    def ask_due(self, site: Site) -> Callable[[], int | None]:
        """Reads: the number and the oldest."""
        keys, snapshot = site.keys, site.tr.snapshot
        counted = snapshot.get(keys.ended_count)
        first = snapshot.get_range(keys.ended_times.start, keys.ended_times.stop, limit=1)

        def reply() -> int | None:
            times = [keys.ended_time(row.key) + self._retain_us for row in first]
            return 0 if count_in(counted.value) > limits.RETAINED_MAX else next(iter(times), None)

        return reply

    def sweep(self, site: Site) -> bool:
        """Remove one batch of the entries that are too old, or too many.

        Reads: the number and the oldest, by snapshot.
        Conflicts: another sweep of them.
        """
        tr, keys = site.tr, site.keys
        counted = tr.snapshot.get(keys.ended_count)
        under = keys.ended_times
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.VERB_BATCH).to_list()
        surplus, over_us = count_in(counted.value) - limits.RETAINED_MAX, site.now_us - self._retain_us
        gone = [row for n, row in enumerate(rows) if n < surplus or keys.ended_time(row.key) <= over_us]
        for row in gone:
            tr.add_read_conflict_key(row.key)
        for row in gone:
            id_, time_us = id_in(row.key), keys.ended_time(row.key)
            tr.clear(row.key)
            tr.clear(keys.ended(id_))
            if row.value:
                tr.clear(keys.ended_of(row.value, time_us, id_))
        _count(tr, keys, -len(gone))
        return bool(gone)


def retain_us_of(settings: Any) -> int:
    """Time for which a queue keeps ended tasks; 0 if it keeps none."""
    return round((settings.retain_s or 0) * 1_000_000)


def _entry(record: Record, outcome: str, now_us: int) -> Entry:
    return Entry(
        outcome,
        now_us,
        record.created_us,
        record.taken_us,
        record.attempts,
        record.failures,
        record.key,
        record.pri,
        b"" if record.session == HANDED_OFF else record.session,
    )


def _count(tr: Transaction, keys: TaskKeys, change: int) -> None:
    if change:
        tr.add(keys.ended_count, COUNTER.pack(change))


_PLACE_BYTES = TIME_BYTES + ID_BYTES


def place_after(after: str | None) -> bytes | None:
    place = place_bytes(after)
    if place is not None and len(place) != _PLACE_BYTES:
        raise no_place(after)
    return place


def require_retaining(shape: Shape) -> None:
    """Raises: UnsupportedOption for a queue that keeps no ended task."""
    if not retain_us_of(shape.settings):
        raise UnsupportedOption(kind=shape.kind.name, option="ended tasks: it has no `retain_s`")


def ended_task(changes: Sequence[Change], id_: bytes) -> EndedTask:
    """Reads: one key of each partition, by snapshot: a task may end in another than the one in its id.

    Raises: TaskNotFound; UnsupportedOption for a queue that keeps none.
    """
    require_retaining(changes[0].shape)
    asked = [(change, change.tr.snapshot.get(change.shape.keys.ended(id_))) for change in changes]
    found = [task for change, value in asked if (task := _shown(change, id_, value)) is not None]
    if not found:
        raise TaskNotFound(id=id_text(id_), name=changes[0].shape.name)
    return found[0]


def page(changes: Sequence[Change], key: bytes, limit: int, after: bytes | None) -> Page[EndedTask]:
    """The tasks that ended before the place `after`, the latest first; those of `key`, unless it is empty."""
    require_retaining(changes[0].shape)
    asked = [(change, _ask_before(change, key, limit, after)) for change in changes]
    rows = [(place, change) for change, reply in asked for place in reply()]
    latest = sorted(rows, key=itemgetter(0), reverse=True)[:limit]
    values = [change.tr.snapshot.get(change.shape.keys.ended(id_in(place))) for place, change in latest]
    found = [_shown(change, id_in(at), value) for (at, change), value in zip(latest, values, strict=True)]
    last = place_text(latest[-1][0]) if len(latest) == limit else None
    return Page([task for task in found if task is not None], last)


def _ask_before(change: Change, key: bytes, limit: int, after: bytes | None) -> Callable[[], list[bytes]]:
    """Ask for the places of ended tasks before `after` in one partition, the latest first."""
    keys, over_us = change.shape.keys, _over_us(change)
    under = keys.ended_of_after(key, over_us) if key else keys.ended_after(over_us)
    prefix = under.start[:-TIME_BYTES]
    stop = under.stop if after is None else min(under.stop, prefix + after)
    rows = change.tr.snapshot.get_range(min(under.start, stop), stop, limit=limit, reverse=True)
    return lambda: [bytes(row.key)[len(prefix) :] for row in rows]


def _over_us(change: Change) -> int:
    return max(0, change.now_us - retain_us_of(change.shape.settings))


def _shown(change: Change, id_: bytes, value: Value) -> EndedTask | None:
    """The task; None for one that is missing, damaged, or too old and not swept yet."""
    with suppress(*DAMAGED):
        entry = entry_of(value.value) if value.present() else None
        return None if entry is None or entry.ended_us <= _over_us(change) else _task(id_, entry)
    return None


def _task(id_: bytes, entry: Entry) -> EndedTask:
    return EndedTask(
        id=id_text(id_),
        outcome=entry.outcome,
        created=entry.created_us / 1_000_000,
        taken=entry.taken_us / 1_000_000 if entry.taken_us else None,
        ended=entry.ended_us / 1_000_000,
        attempts=entry.attempts,
        failures=entry.failures,
        key=key_in(entry.key),
        pri=entry.pri,
        session=entry.session.hex() or None,
    )
