"""Keyed: tasks wait in a line per key, and one pointer per key stands where takers look.

Takers read pointers, in their order, and so see nothing of keys that have nothing to give. Under `beside`,
`slug` being a key with its length in front:

    1, slug, place   waiting   record                 every ready task, in the order of its key
    2, slug          state     how the key stands     whoever changes that; a put looks at it by snapshot
    3                round     see fair.py
    4, 5, 6          numbers   see tally.py           key_statistics
    7                floor     see fair/items.py      FairQueue

The pointer of a key is a key of `ready` that holds the record of the first task waiting. What makes it safe
that a put only appends when the state it saw gives it nothing else to do:

- Whoever moves the pointer on, or finds nothing to point at, read the line up to where it then points, and
  says so: a conflict range, to be read and written. So it meets the put that it did not see ...
- ... and the put, which has a read-conflict key at its own place, meets whoever moved on beyond it.

Two puts only set different keys: they never meet, save where both would write the pointer.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec.structs import replace

from fdbqueue import limits
from fdbqueue.aside import DAMAGED
from fdbqueue.disciplines.discipline import Mend, no_mending, read_index
from fdbqueue.disciplines.tally import SLUG_BYTES, Standing, Tally, slug_of
from fdbqueue.records.keys import Count, Record, TaskKeys, record_of, record_to_bytes
from fdbqueue.records.statistics import LIVE_OF
from fdbqueue.seam import Range, ReadTransaction, Transaction, Value
from fdbqueue.task import TaskState

_WAITING, _STATE = b"\x01", b"\x02"

# When several tasks are to be taken: of how many keys at a time it is asked how they stand, and how many of
# the tasks that come next. One round trip for some dozen tasks, and little that nobody needs.
_KEYS_AHEAD, _TASKS_AHEAD = 16, 3


# A round beyond is damage: it would fit into no key. Those of a thousand years end far below.
ROUND_MAX = 2**60
Round = Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]


class KeyState(msgspec.Struct, frozen=True, array_like=True):
    """How a key stands. One that nothing is known of has no state stored."""

    pointer: bytes = b""
    """Where among `ready` its pointer is; it has none if nothing can be taken."""
    head: bytes = b""
    """The place of the task it points at."""
    taken: Count = 0
    round: Round = 0
    """The round in which it has last used shares,"""
    used: Count = 0
    """and how many of them."""


IDLE = KeyState()
Now = Callable[[], int]
Head = tuple[bytes, Record, KeyState, Iterator[Record]]
"""Where the pointer of a key stands, at what, how the key stands, and what comes after."""

_to_bytes = msgspec.msgpack.Encoder().encode
_state_of = msgspec.msgpack.Decoder(KeyState).decode


@dataclass
class Shift:
    """What happens to the tasks of one key in one change."""

    enter: list[Record] = field(default_factory=list)
    leave: list[Record] = field(default_factory=list)
    took: list[Record] = field(default_factory=list)
    freed: int = 0
    numbers: Counter[str] = field(default_factory=Counter)

    @property
    def changes_state(self) -> bool:
        return bool(self.leave or self.took or self.freed)


@dataclass(frozen=True)
class Asked:
    """What is known of a key before a change; its standing, if the number of those that wait changes."""

    state: Value
    standing: Standing | None


class Keyed(ABC):
    counts_taken: ClassVar[bool]
    """Whether it matters that a task is not taken any more."""
    one_each = False
    """Whether a key never has more than one task to take."""

    def __init__(self, keys: TaskKeys, _: Mapping[str, Any]) -> None:
        self._keys = keys
        self._beside = keys.beside
        self.tally = Tally(keys.beside)
        self.index = slice(keys.beside + _WAITING, keys.beside + _STATE)
        self.mend: Mend = no_mending

    # What each keyed discipline decides.

    @abstractmethod
    def place(self, record: Record) -> bytes:
        """Where the task stands among those of its key."""

    @abstractmethod
    def open(self, state: KeyState) -> bool:
        """Whether the first task of the key may be taken."""

    @abstractmethod
    def point(self, state: KeyState, head: Record) -> bytes:
        """Where the pointer stands that points at `head`."""

    @abstractmethod
    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:
        """The state when these have been taken, and so many are not taken any more. Pure: a take of several
        foresees by it in what order they come.
        """

    # What those need that know time by the tasks taken.

    def ask_now(self, tr: Transaction) -> Now:  # noqa: ARG002
        return _always_now

    def begin(self, state: KeyState, now: int) -> KeyState:  # noqa: ARG002
        """The state of a key that had nothing to give, when it has."""
        return state

    def tell(self, tr: Transaction, state: KeyState) -> None:  # noqa: B027  # not all know time
        """Tell the others of the time, `after` a take."""

    # What the life cycle asks.

    def filed(self, record: Record) -> bytes:
        key: bytes = self._line(record.key).start + self.place(record)
        return key

    def ask_put(self, tr: Transaction, keys: Collection[bytes]) -> Callable[[Sequence[Record]], None]:
        asked, now = {key: self._ask(tr, tr.snapshot, key, counts=True) for key in keys}, self.ask_now(tr)

        def file(records: Sequence[Record]) -> None:
            for key, shift in self._by_key((), records).items():
                self._enter(tr, key, asked[key], shift, now)

        return file

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        shifts, now = self._by_key(olds, news), self.ask_now(tr)
        asked = {
            key: self._ask(
                tr,
                tr if shift.changes_state else tr.snapshot,
                key,
                counts=bool(shift.numbers["ready"]),
            )
            for key, shift in shifts.items()
            if shift.changes_state or shift.enter
        }
        lines = {
            key: self._ask_line(tr, key, len(shift.leave) + 1)
            for key, shift in shifts.items()
            if shift.changes_state
        }
        for key, shift in shifts.items():
            if shift.changes_state:
                self._change(tr, key, asked[key], shift, lines[key], now)
            else:
                self._enter(tr, key, asked.get(key), shift, now)

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        if limit == 1 or self.one_each:
            return read_index(tr, self._ask_pointers(tr, limit), self.mend)
        return (record for _, record in self.places(tr, limit))

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        for key in {record.key for record in records}:
            tr.add_read_conflict_key(self._state(key))

    def places(self, tr: Transaction, limit: int) -> Iterator[tuple[bytes, Record]]:
        """The next tasks, each with the place of the pointer that will have been at it; by snapshot."""
        return islice(self._merged(tr, self._ask_pointers(tr, limit), self.ask_now(tr), limit), limit)

    def parted(self, rest: bytes) -> tuple[bytes, bytes]:
        """The key, and the place without its id, from what stands in a key of `index` before the id."""
        slug_bytes = SLUG_BYTES + int.from_bytes(rest[:SLUG_BYTES], "big")
        return rest[SLUG_BYTES:slug_bytes], rest[slug_bytes:]

    def points_at(self, tr: Transaction, ready_key: bytes, record: Record) -> bool:
        """True if `ready_key` is the pointer of the record's key, and stands at the record."""
        state = self._read(tr, record.key, tr.get(self._state(record.key)))
        return self._keys.ready_at(state.pointer) == ready_key and state.head == self.place(record)

    def ask_oldest(self, tr: ReadTransaction, key: bytes) -> Range:
        """Ask for the first task that waits of a key."""
        line = self._line(key)
        return tr.get_range(line.start, line.stop, limit=1)

    # How it is done.

    def _by_key(self, olds: Sequence[Record], news: Sequence[Record]) -> dict[bytes, Shift]:
        shifts: dict[bytes, Shift] = {}
        was = {record.id: record.state for record in olds}
        becomes = {record.id: record.state for record in news}

        def of(record: Record) -> Shift:
            shift = shifts.get(record.key)
            if shift is None:
                shift = shifts[record.key] = Shift()
            return shift

        for record in olds:
            of(record).numbers[LIVE_OF[record.state]] -= 1
            if record.state == TaskState.READY:
                of(record).leave.append(record)
            elif self.counts_taken and _no_longer(TaskState.TAKEN, record, becomes):
                of(record).freed += 1
        for record in news:
            of(record).numbers[LIVE_OF[record.state]] += 1
            if record.state == TaskState.READY:
                of(record).enter.append(record)
            elif _no_longer(TaskState.TAKEN, record, was):
                of(record).took.append(record)
        return shifts

    def _ask(self, tr: Transaction, reads: ReadTransaction, key: bytes, *, counts: bool) -> Asked:
        slug = slug_of(key)
        state = reads.get(self._beside + _STATE + slug)
        return Asked(state, self.tally.ask(tr, slug) if counts else None)

    def _count(self, tr: Transaction, key: bytes, shift: Shift, asked: Asked | None) -> None:
        if any(shift.numbers.values()):
            standing = asked.standing if asked is not None and shift.numbers["ready"] else None
            self.tally.add(tr, slug_of(key), shift.numbers, standing)

    def _enter(self, tr: Transaction, key: bytes, asked: Asked | None, shift: Shift, now: Now) -> None:
        """Nobody is taken or leaves; who is not ready either only counts."""
        if asked is not None and shift.enter:
            self._append(tr, key, self._read(tr, key, asked.state), shift.enter, now)
        self._count(tr, key, shift, asked)

    def _append(
        self, tr: Transaction, key: bytes, state: KeyState, records: Sequence[Record], now: Now
    ) -> None:
        """Records become ready, and nothing else happens to their key; `state` was read by snapshot."""
        for record in records:
            tr.add_read_conflict_key(self.filed(record))
        first = min(records, key=self.place)
        leads = self.open(state) and (not state.head or self.place(first) < state.head)
        if leads:
            tr.add_read_conflict_key(self._state(key))
        self._file(tr, records)
        if leads:
            begun = state if state.head else self.begin(state, now())
            self._point_at(tr, key, state, begun, first)

    def _change(self, tr: Transaction, key: bytes, asked: Asked, shift: Shift, line: Range, now: Now) -> None:
        old = self._read(tr, key, asked.state)
        if shift.took and not old.pointer:  # what was taken had one: the state is lost
            old = self._rebuilt(tr, key)
        gone = {self.place(record) for record in shift.leave}
        state = self.after(old, shift.took, shift.freed, now())
        if shift.took:
            self.tell(tr, state)
        first = self._first_of(tr, key, line, gone, shift.enter) if self.open(state) else None
        if self.open(state) and (not old.head or old.head in gone):
            self._rely_on(tr, key, first)
        for record in shift.leave:
            tr.clear(self.filed(record))
        self._file(tr, shift.enter)
        self._point_at(tr, key, old, state, first)
        self._count(tr, key, shift, asked)

    def _first_of(
        self, tr: Transaction, key: bytes, line: Range, gone: set[bytes], enter: Sequence[Record]
    ) -> Record | None:
        """The first task in the line when some have left it and others have entered."""
        waiting = self._waiting(tr, key, line)
        stays = islice((record for record in waiting if self.place(record) not in gone), 1)
        return min([*stays, *enter], key=self.place, default=None)

    def _rely_on(self, tr: Transaction, key: bytes, first: Record | None) -> None:
        """Meet whoever appends before the first of the line, whichever commits first."""
        line = self._line(key)
        stop = line.stop if first is None else self.filed(first)
        tr.add_read_conflict_range(line.start, stop)
        tr.add_write_conflict_range(line.start, stop)

    def _file(self, tr: Transaction, records: Sequence[Record]) -> None:
        for record in records:
            tr.set(self.filed(record), record_to_bytes(record))

    def _point_at(
        self, tr: Transaction, key: bytes, old: KeyState, state: KeyState, head: Record | None
    ) -> None:
        """Store `state`, its pointer at `head`, in place of `old`."""
        pointer = b"" if head is None else self.point(state, head)
        if old.pointer and old.pointer != pointer:
            tr.clear(self._keys.ready_at(old.pointer))
        if head is not None:
            tr.set(self._keys.ready_at(pointer), record_to_bytes(head))
        state = replace(state, pointer=pointer, head=b"" if head is None else self.place(head))
        if self._idle(state):
            tr.clear(self._state(key))
        else:
            tr.set(self._state(key), _to_bytes(state))

    def _idle(self, state: KeyState) -> bool:
        return not state.pointer and not state.taken

    def _waiting(self, tr: Transaction, key: bytes, line: Range) -> Iterator[Record]:
        """The records of a line that was asked for; entries that cannot be read are passed over.

        They stay: to mend one is to change this key, which is being changed. Whoever searches for their tasks
        finds them (tasks/mending.py).
        """
        rows = line.to_list()
        found = list(read_index(tr, rows, no_mending))
        yield from found
        if len(found) < len(rows):
            more = self._ask_line(tr, key, len(rows) + limits.SEARCHED_MAX)
            yield from islice(read_index(tr, more, no_mending), len(found), None)

    def _read(self, tr: Transaction, key: bytes, value: Value) -> KeyState:
        if not value.present():
            return IDLE
        try:
            return _state_of(value.value)
        except DAMAGED:
            return self._rebuilt(tr, key)

    def _rebuilt(self, tr: Transaction, key: bytes) -> KeyState:
        """How a key stands, told from its numbers and its pointer, if that is among the first.

        Reads: the state, serialisably; limits.SEARCHED_MAX pointers, the line and the numbers, by snapshot.
        """
        tr.add_read_conflict_key(self._state(key))
        taken = self.tally.numbers(tr, slug_of(key))["taken"] if self.counts_taken else 0
        at = [
            (row.key[len(self._keys.ready.start) :], record)
            for row in self._ask_pointers(tr, limits.SEARCHED_MAX)
            for record in read_index(tr, (row,), no_mending)
            if record.key == key
        ]
        if not at:
            return KeyState(taken=taken)
        pointer, head = at[0]
        return KeyState(pointer=pointer, head=self.place(head), taken=taken, round=self.round_in(pointer))

    def round_in(self, pointer: bytes) -> int:  # noqa: ARG002  # not all know time
        """The round in which a pointer stands."""
        return 0

    def _ask_pointers(self, tr: Transaction, limit: int) -> Range:
        ready = self._keys.ready
        return tr.snapshot.get_range(ready.start, ready.stop, limit=limit)

    def _merged(
        self, tr: Transaction, pointers: Range, now: Now, limit: int
    ) -> Iterator[tuple[bytes, Record]]:
        """What takes one after another would give: each moves its key's pointer, and that is where it stands
        in the order.
        """
        ahead = self._pointed(tr, pointers)
        heap: list[Head] = []
        while heap or ahead:
            if ahead and (not heap or ahead[0][0] < heap[0][0]):
                for key in self._heads(tr, ahead[:_KEYS_AHEAD], limit):
                    heappush(heap, key)
                ahead = ahead[_KEYS_AHEAD:]
            place, record, state, rest = heappop(heap)
            yield place, record
            state = self.after(state, [record], 0, now())
            following = next(rest, None) if self.open(state) else None
            if following is not None:
                heappush(heap, (self.point(state, following), following, state, rest))

    def _pointed(self, tr: Transaction, pointers: Range) -> list[tuple[bytes, Record]]:
        """Where the pointers stand, and at what. The same as read_index, without a generator for each."""
        prefix, found = len(self._keys.ready.start), []
        for entry in pointers:
            record: Record | None
            try:
                record = record_of(entry.value)
            except DAMAGED:
                record = None
            if record is None or not entry.key.endswith(record.id):
                record = self.mend(tr, entry.key, entry.value)
            if record is not None:
                found.append((entry.key[prefix:], record))
        return found

    def _heads(self, tr: Transaction, pointers: Sequence[tuple[bytes, Record]], limit: int) -> list[Head]:
        """How these keys stand, with the first of their lines, asked for together."""
        asked = [
            (tr.snapshot.get(self._state(record.key)), self._ask_rest(tr, record, _TASKS_AHEAD))
            for _, record in pointers
        ]
        return [
            (place, record, self._read(tr, record.key, state), self._following(tr, rest, limit))
            for (place, record), (state, rest) in zip(pointers, asked, strict=True)
        ]

    def _following(self, tr: Transaction, asked: Range, limit: int) -> Iterator[Record]:
        first = list(read_index(tr, asked, self.mend))
        yield from first
        if len(first) == _TASKS_AHEAD:
            yield from read_index(tr, self._ask_rest(tr, first[-1], limit), self.mend)

    def _ask_rest(self, tr: Transaction, record: Record, limit: int) -> Range:
        line = self._line(record.key)
        return tr.snapshot.get_range(self.filed(record) + b"\x00", line.stop, limit=limit)

    def _ask_line(self, tr: Transaction, key: bytes, limit: int) -> Range:
        line = self._line(key)
        return tr.snapshot.get_range(line.start, line.stop, limit=limit)

    def _line(self, key: bytes) -> slice:
        prefix = self._beside + _WAITING + slug_of(key)
        return slice(prefix, prefix + b"\xff" * 33)

    def _state(self, key: bytes) -> bytes:
        return self._beside + _STATE + slug_of(key)


def _always_now() -> int:
    return 0


def _no_longer(state: str, record: Record, other: Mapping[bytes, str]) -> bool:
    return record.state == state and other.get(record.id) != state
