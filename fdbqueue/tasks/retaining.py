"""Ended tasks of a queue with `retain_s`: kept for that long, at most limits.RETAINED_MAX, without data.

The transaction that ends a task writes its outcome, without a read. A sweep removes the entries that are too
old, or too many. A queue without `retain_s` has none of these keys, and pays nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.aside import COUNTER, count_in
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.feature import End, Feature, Site
from fdbqueue.tasks.records.keys import Record, TaskKeys, id_in


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


class Retention(Feature):
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
        record.session,
    )


def _count(tr: Transaction, keys: TaskKeys, change: int) -> None:
    if change:
        tr.add(keys.ended_count, COUNTER.pack(change))
