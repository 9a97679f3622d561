"""Mending: an unreadable record is repaired or set aside, so that it holds up no other task.

A ready task has its record in the index that takers read, too. If one of the two is damaged, the other is
written in its place. If both are, the task is set aside (unreadable.py): its stored values and its payload.
Then only its keys tell which task it was. The key of its state ends in the id, and has the task key as its
value. From these the counters and the discipline learn that the task has gone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import Aside
from fdbqueue.tasks.disciplines.discipline import Discipline
from fdbqueue.tasks.records.keys import (
    ID_BYTES,
    NEVER_US,
    SESSION_BYTES,
    Record,
    TaskKeys,
    id_in,
    partition_of,
    priority_in,
    record_to_bytes,
    sound_record,
)
from fdbqueue.tasks.records.statistics import LIVE, LIVE_OF, packed

if TYPE_CHECKING:
    from fdbqueue.tasks.parking.under import Limits

NO_RECORD = "the record of a task cannot be read"
NO_INDEX = "the entry of a ready task cannot be read"


class Mender:
    def __init__(
        self,
        keys: TaskKeys,
        shared: SharedKeys,
        discipline: Discipline,
        aside: Aside,
        limits_: "Limits | None",
        has_gone: Callable[[Transaction], None],
    ) -> None:
        """`has_gone` is called after a task counts no longer."""
        self._has_gone = has_gone
        self._keys = keys
        self._limits = limits_
        self._shared = shared
        self._discipline = discipline
        self._aside = aside
        self.removed = 0
        """Number of entries removed from indexes: a reader that sees it change must read on."""

    def entry(self, tr: Transaction, key: bytes, value: bytes) -> Record | None:
        """The ready task at `key` of an index, its entry written anew; None if the task was set aside.

        Reads: the record, serialisably. Conflicts: any change of the task and of the entry.
        """
        id_ = id_in(key)
        raw = tr.get(self._keys.task(id_)).value
        record = sound_record(raw, id_) or self._copy_of(tr, id_)
        if record is not None and record.state == TaskState.READY and self._is_of(tr, key, record):
            tr.add_read_conflict_key(key)
            for damaged in (key, self._discipline.filed(record), self._keys.task(id_)):
                tr.set(damaged, record_to_bytes(record))
            return record
        self.removed += 1
        if record is not None:  # the entry is none of that task
            self._aside.put(tr, key, [value], NO_INDEX)
            tr.clear(key)
            return None
        self._set_aside(tr, key, [value] if raw is None else [value, raw], NO_INDEX)
        return None

    def record(self, tr: Transaction, id_: bytes, raw: bytes) -> None:
        """Repair an unreadable record of a task from the index, or set the task aside.

        Reads: the key of its state, among the first limits.SEARCHED_MAX of each state, by snapshot.
        """
        record = self._copy_of(tr, id_)
        if record is None:
            self._set_aside(tr, self._keys.task(id_), [raw], NO_RECORD)
        else:
            tr.add_read_conflict_key(self._discipline.filed(record))
            tr.set(self._keys.task(id_), record_to_bytes(record))

    def lost(self, tr: Transaction, key: bytes, value: bytes) -> None:
        """Clear the key of a state that names a missing task, and count the task no longer."""
        gone = self._stand_in(key, value)
        tr.add_read_conflict_key(key)
        tr.clear(key)
        if gone is None:
            return
        tr.add(self._keys.live, packed(LIVE, {LIVE_OF[gone.state]: -1}))
        self._has_gone(tr)
        if gone.state == TaskState.BURIED:
            for row in self._entries_of(tr, self._keys.classed, gone.id):  # among the first of all classes
                late.failures.lost(tr, self._keys, row.key)
        # Without its task key, the line that has lost a task is unknown.
        if gone.key or not isinstance(self._discipline, late.disciplines.keyed.Keyed):
            self._discipline.shift(tr, [gone], ())

    def forget(self, tr: Transaction, id_: bytes) -> None:
        """Remove a task, readable or not. Reads: as `record`."""
        state = self._state_of(tr, id_)
        if state is not None:
            self.lost(tr, state.key, state.value)
        self._clear(tr, id_)

    def _set_aside(self, tr: Transaction, key: bytes, values: Sequence[bytes], reason: str) -> None:
        id_ = id_in(key)
        self._aside.put(tr, key, values, reason, self._keys.payloads_of(id_))
        self.forget(tr, id_)
        tr.clear(key)

    def _clear(self, tr: Transaction, id_: bytes) -> None:
        beside = (self._keys.payloads_of(id_), self._keys.failures_of(id_), self._keys.steps_of(id_))
        tr.add_read_conflict_key(self._keys.task(id_))
        tr.clear(self._keys.task(id_))
        if partition_of(id_) != self._keys.partition:
            tr.clear(self._shared.moved(id_))
        if self._limits is not None:
            self._limits.give_back_unread(tr, id_)
        for under in beside:
            tr.clear_range(under.start, under.stop)

    def _is_of(self, tr: Transaction, key: bytes, record: Record) -> bool:
        """True if `key` is the key of the ready task in an index that takers read."""
        if self._discipline.filed(record) == key:
            return True
        return isinstance(self._discipline, late.disciplines.keyed.Keyed) and self._discipline.points_at(
            tr, key, record
        )

    def _copy_of(self, tr: Transaction, id_: bytes) -> Record | None:
        copies = (sound_record(row.value, id_) for row in self._entries_of(tr, self._discipline.index, id_))
        return next((copy for copy in copies if copy is not None), None)

    def _state_of(self, tr: Transaction, id_: bytes) -> KeyValue | None:
        """The key of the state that the task is in, if it is among the first of that state."""
        for under in (self._discipline.index, self._keys.taken, self._keys.delayed, self._keys.buried):
            for row in self._entries_of(tr, under, id_):
                return row
        return None

    def _entries_of(self, tr: Transaction, under: slice, id_: bytes) -> Iterator[KeyValue]:
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.SEARCHED_MAX)
        return (row for row in rows if row.key.endswith(id_))

    def _stand_in(self, key: bytes, value: bytes) -> Record | None:
        """A record with the facts that a key of a state tells; None for a key that no task has."""
        for state, under in (
            (TaskState.READY, self._discipline.index),
            (TaskState.TAKEN, self._keys.taken),
            (TaskState.DELAYED, self._keys.delayed),
            (TaskState.BURIED, self._keys.buried),
        ):
            if under.start <= key < under.stop and len(key) >= len(under.start) + ID_BYTES:
                place = key[len(under.start) : -ID_BYTES]
                return self._told(state, place, value, id_in(key))
        return None

    def _told(self, state: TaskState, place: bytes, value: bytes, id_: bytes) -> Record | None:
        key = value
        if state == TaskState.READY:
            key = b""
            if isinstance(self._discipline, late.disciplines.keyed.Keyed):
                key, place = self._discipline.parted(place)
        session = place if state == TaskState.TAKEN else b""
        if state == TaskState.TAKEN and len(session) != SESSION_BYTES:
            return None
        return Record(
            id=id_,
            state=state,
            pri=0 if session else priority_in(place),
            created_us=0,
            expires_us=NEVER_US,
            ttr_us=NEVER_US,
            size_bytes=0,
            key=key,
            session=session,
        )
