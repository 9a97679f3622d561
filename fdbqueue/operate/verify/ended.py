"""The checks of the ended tasks that a queue keeps: an entry by id, one by time, and one by task key."""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen
from fdbqueue.operate.verify.slices import Mend, Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.records.keys import ENDED, ENDED_AT, ENDED_OF, TaskKeys, id_in, id_text
from fdbqueue.tasks.retaining import Entry, entry_of

COLUMNS = (ENDED, ENDED_AT, ENDED_OF)


class EndedChecks:
    def __init__(self, keys: TaskKeys, mending: str) -> None:
        self._keys = keys
        self._mending = mending

    def asks(self, row: Row, rest: bytes) -> Iterator[Ask]:
        if row.key.startswith(self._keys.ended(b"")):
            entry = _readable(row.value)
            yield from () if entry is None else self._indexes(entry, rest)
        else:
            yield self._keys.ended(id_in(row.key))

    def judge(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if row.key.startswith(self._keys.ended(b"")):
            yield from self._judge_entry(row, rest, seen)
        else:
            yield from self._judge_index(row, seen)

    def _judge_entry(self, row: Row, id_: bytes, seen: Seen) -> Iterator[Suspect]:
        entry = _readable(row.value)
        if entry is None:
            text = f"The entry of the ended task {id_text(id_)} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, lambda tr: tr.clear(row.key))
            return
        if any(seen.value(key) is None for key in self._indexes(entry, id_)):
            text = f"No listing, or no sweep, finds the ended task {id_text(id_)}."
            mend: Mend = partial(self._write_indexes, entry, id_)
            yield Suspect(Flaw.STATE, row.key, text, self._mending, mend)

    def _judge_index(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        id_ = id_in(row.key)
        stored = seen.value(self._keys.ended(id_))
        entry = None if stored is None else _readable(stored)
        if stored is None or (entry is not None and row.key not in self._indexes(entry, id_)):
            text = f"A listing of ended tasks has the task {id_text(id_)}, which is not kept there."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))

    def _indexes(self, entry: Entry, id_: bytes) -> list[bytes]:
        by_time = self._keys.ended_at(entry.ended_us, id_)
        return [by_time, self._keys.ended_of(entry.key, entry.ended_us, id_)] if entry.key else [by_time]

    def _write_indexes(self, entry: Entry, id_: bytes, tr: Transaction) -> None:
        by_time, *by_key = self._indexes(entry, id_)
        tr.set(by_time, entry.key)
        for key in by_key:
            tr.set(key, b"")


def _readable(value: bytes) -> Entry | None:
    try:
        return entry_of(value)
    except DAMAGED:
        return None
