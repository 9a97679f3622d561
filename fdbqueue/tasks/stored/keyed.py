"""Keyed disciplines: a FIFO for each task key, and one pointer per key in the index that takers read.

Takers read pointers, in order, and never meet a key without a task to take. Under `beside`, with `slug`, the
task key with its length in front; the last column names the users:

    1, slug, place   waiting   record                 every ready task, in the order of its key
    2, slug          state     KeyState               its changes; puts, by snapshot
    3                round     see Fair below
    4, 5, 6          counts    see key_counts.py      key_statistics
    7                floor     see queues/fair.py     FairQueue
    8, slug          debt      see charged.py         takes, by snapshot

The pointer of a task key is an entry of `ready` that holds the record of its first ready task. A put reads
the state by snapshot; if the key has a pointer, it only appends its task. Two conflict ranges make that
safe:

- A transaction that moves or clears the pointer has read the FIFO up to the new place of the pointer. It adds
  that range as a read and a write conflict, so it conflicts with an earlier put that it did not see.
- A put adds a read-conflict key at the place of its task, so it conflicts with an earlier move beyond it.

Two puts set different keys and never conflict, unless both write the pointer.

Micro: tasks of one key in order, `key_concurrency` at a time; keys in the order of their first tasks.

Fair: each task key with ready tasks gets its quota of every round. The pointer of a key lies at (round of its
first task, arrival of that task). So takers find the rounds in order, and the keys of one round in the order
of arrival. The quota of a key is its weight, 1 by default. A task of cost c needs c units of quota, over
several rounds if necessary, and comes in the round of the last unit. The current round is that of the last
task taken. A key that gets its first task begins in the round after it. The current round is read by snapshot
and written by an atomic maximum, so it causes no conflicts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any, ClassVar

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.seam import EXACT, Range, ReadTransaction, Transaction, Value
from fdbqueue.core.task import TaskPlace
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.stored import discipline
from fdbqueue.tasks.stored.discipline import Mended, Shift, no_mending, read_index, shifts_by_key
from fdbqueue.tasks.stored.key_counts import (
    IDLE,
    ROUND_MAX,
    SLUG_BYTES,
    KeyCounts,
    KeyState,
    Standing,
    readable_state,
    slug_of,
    state_of,
    state_to_bytes,
)
from fdbqueue.tasks.stored.records import ID_BYTES, NUMBER, Record, TaskKeys, record_of, record_to_bytes

_WAITING, _STATE, _STATES_END = b"\x01", b"\x02", b"\x03"

# A take of several tasks reads the states of this number of keys, and this number of next tasks of each. So a
# dozen tasks cost one round trip, and few rows are read in vain.
_KEYS_AHEAD, _TASKS_AHEAD = 16, 3


Now = Callable[[], int]
Behind = Mapping[bytes, Callable[[], bool]]
"""Replies by task key: true if the key must wait for its tasks in another partition."""
NOT_BEHIND: Behind = {}
Head = tuple[bytes, Record, KeyState, Iterator[Record]]
"""A task key in a take of several: place of its pointer, first task, state, and the tasks behind the first.
"""


@dataclass(frozen=True)
class Asked:
    """Values of a task key before a change; `standing` if the number of its ready tasks changes."""

    state: Value
    standing: Standing | None
    debt: Value | None = None


class Keyed(Mended, ABC):
    counts_taken: ClassVar[bool]
    """True if the state of a key depends on the number of its taken tasks."""
    one_each = False
    """True if a key has at most one task to take."""
    settling = False
    """True while states go by another number of tasks at a time than this one: a pointer may be there that
    must not be followed, or not be there.
    """
    keeps_rounds = False
    """True if a key without a ready task keeps its state."""

    def __init__(self, keys: TaskKeys, _: Mapping[str, Any]) -> None:
        self._keys = keys
        self._beside = keys.beside
        self.counts = KeyCounts(keys.beside)
        self.index = slice(keys.beside + _WAITING, keys.beside + _STATE)
        self.states = slice(keys.beside + _STATE, keys.beside + _STATES_END)
        self.mend = no_mending

    # Each keyed discipline decides:

    @abstractmethod
    def place(self, record: Record) -> bytes:
        """The order of the task among those of its key."""

    @abstractmethod
    def open(self, state: KeyState) -> bool:
        """True if the first task of the key may be taken, unless the key is held."""

    @abstractmethod
    def point(self, state: KeyState, head: Record) -> bytes:
        """The place among `ready` of a pointer to `head`."""

    @abstractmethod
    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:
        """The state after a take of `took`, and the end of `freed` leases, in round `now`.

        It is pure: a take of several tasks calls it to compute their order.
        """

    # A discipline with rounds overrides:

    def ask_now(self, tr: Transaction) -> Now:  # noqa: ARG002
        return lambda: 0

    def begin(self, state: KeyState, now: int) -> KeyState:  # noqa: ARG002
        """The state of a key that gets its first ready task in round `now`."""
        return state

    def tell(self, tr: Transaction, state: KeyState, asked: Asked, took: Sequence[Record]) -> KeyState:  # noqa: ARG002
        """Store the current round, from the state after a take. Return the state to store."""
        return state

    # The interface of the life cycle:

    def filed(self, record: Record) -> bytes:
        key: bytes = self.fifo(record.key).start + self.place(record)
        return key

    def ask_put(
        self, tr: Transaction, keys: Collection[bytes], behind: Behind = NOT_BEHIND
    ) -> Callable[[Sequence[Record]], None]:
        asked, now = {key: self._ask(tr, tr.snapshot, key, counts=True) for key in keys}, self.ask_now(tr)

        def file(records: Sequence[Record]) -> None:
            for key, shift in shifts_by_key((), records, self.counts_taken).items():
                self._enter(tr, key, asked[key], shift, now, behind)

        return file

    def shift(
        self,
        tr: Transaction,
        olds: Sequence[Record],
        news: Sequence[Record],
        behind: Behind = NOT_BEHIND,
    ) -> None:
        shifts, now = shifts_by_key(olds, news, self.counts_taken), self.ask_now(tr)
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
        fifos = {
            key: self._ask_fifo(tr, key, len(shift.leave) + 1)
            for key, shift in shifts.items()
            if shift.changes_state
        }
        for key, shift in shifts.items():
            if shift.changes_state:
                self._change(tr, key, asked[key], shift, fifos[key], now, behind)
            else:
                self._enter(tr, key, asked.get(key), shift, now, behind)

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        if (limit == 1 or self.one_each) and not self.settling:
            return read_index(tr, self._ask_pointers(tr, limit), self.mend)
        return (record for _, record in self.places(tr, limit))

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        for key in {record.key for record in records}:
            tr.add_read_conflict_key(self.state_key(key))

    def places(self, tr: Transaction, limit: int) -> Iterator[tuple[bytes, Record]]:
        """The next tasks, each with the place that the pointer of its key will have. Reads by snapshot."""
        few = max(limit, limits.KEYS_LOOKED_AT_MAX) if self.settling else limit
        return islice(self._merged(tr, self._ask_pointers(tr, few), self.ask_now(tr), limit), limit)

    def parted(self, rest: bytes) -> tuple[bytes, bytes]:
        """Split the part of an `index` key before the task's id into the task key and the place."""
        slug_bytes = SLUG_BYTES + int.from_bytes(rest[:SLUG_BYTES], "big")
        return rest[SLUG_BYTES:slug_bytes], rest[slug_bytes:]

    def points_at(self, tr: Transaction, ready_key: bytes, record: Record) -> bool:
        """True if `ready_key` is the pointer of the record's task key, and points at the record."""
        state = self._read(tr, record.key, tr.get(self.state_key(record.key)))
        return self._keys.ready_at(state.pointer) == ready_key and state.head == self.place(record)

    def ask_oldest(self, tr: ReadTransaction, key: bytes) -> Range:
        fifo = self.fifo(key)
        return tr.get_range(fifo.start, fifo.stop, limit=1)

    def waiting(self, key: bytes, fifo: Range) -> Iterator[Record]:
        """The tasks of the FIFO `fifo`, each damaged one with a stand-in: a mend here would change the task
        key in the middle of another change. A pointer leads takers to it, and they mend it.
        """
        prefix = len(self.fifo(key).start)
        rows = (row for row in fifo.to_list() if len(row.key) >= prefix + ID_BYTES)
        return (discipline.read(row, key, row.key[prefix:]) for row in rows)

    def let_go(self, tr: Transaction, key: bytes) -> bool:
        """Let the first task of a held key be taken: the key has left its old partition. False if it was not
        held.

        Reads: the state, serialisably; the first ready tasks of the key.
        """
        now, asked, fifo = self.ask_now(tr), tr.get(self.state_key(key)), self._ask_fifo(tr, key, 1)
        state = self._read(tr, key, asked)
        # A damaged state, which is rebuilt here, may have been that of a held key.
        if not state.held and readable_state(asked.value) is not None:
            return False
        free = replace(state, held=False)
        first = self._first_of(key, fifo, set(), ()) if self.is_open(free) else None
        if self.is_open(free):
            self._rely_on(tr, key, first)
        begun = free if first is None else self.begin(free, now())
        self.store(tr, key, state, begun, first)
        return True

    def refit(self, tr: Transaction, key: bytes) -> bool:
        """Fit the pointer of a key to another number of tasks at a time. False if it fits.

        Reads: the state, serialisably; the first ready task of the key.
        """
        asked, fifo = tr.get(self.state_key(key)), self._ask_fifo(tr, key, 1)
        state = self._read(tr, key, asked)
        first = self._first_of(key, fifo, set(), ()) if self.is_open(state) else None
        if state.head == (b"" if first is None else self.place(first)):
            return False
        if self.is_open(state):
            self._rely_on(tr, key, first)
        self.store(tr, key, state, state, first)
        return True

    def is_open(self, state: KeyState) -> bool:
        return not state.held and self.open(state)

    # Implementation:

    def _ask(self, tr: Transaction, reads: ReadTransaction, key: bytes, *, counts: bool) -> Asked:
        slug = slug_of(key)
        state = reads.get(self._beside + _STATE + slug)
        return Asked(state, self.counts.ask(tr, slug) if counts else None)

    def _count(self, tr: Transaction, key: bytes, shift: Shift, asked: Asked | None) -> None:
        if any(shift.numbers.values()):
            standing = asked.standing if asked is not None and shift.numbers["ready"] else None
            self.counts.add(tr, slug_of(key), shift.numbers, standing)

    def _enter(
        self, tr: Transaction, key: bytes, asked: Asked | None, shift: Shift, now: Now, behind: Behind
    ) -> None:
        """Append the tasks in `shift.enter`, and add `shift.numbers` to the counts of the key.

        The shift leaves the state of the key as it is: its `changes_state` is False.
        """
        if asked is not None and shift.enter:
            self._append(tr, key, self._read(tr, key, asked.state), shift.enter, now, behind)
        self._count(tr, key, shift, asked)

    def _append(
        self,
        tr: Transaction,
        key: bytes,
        state: KeyState,
        records: Sequence[Record],
        now: Now,
        behind: Behind,
    ) -> None:
        """Add records that become ready, the only change of their key; `state` was read by snapshot."""
        for record in records:
            tr.add_read_conflict_key(self.filed(record))
        first = min(records, key=self.place)
        if _must_hold(state, key, behind):
            tr.add_read_conflict_key(self.state_key(key))
            self._file(tr, records)
            self.store(tr, key, state, replace(state, held=True), None)
            return
        leads = self.is_open(state) and (not state.head or self.place(first) < state.head)
        if leads and self.settling and not state.head:  # tasks may wait without a pointer
            first = self._first_of(key, self._ask_fifo(tr, key, 1), set(), records) or first
            self._rely_on(tr, key, first)
        if leads:
            tr.add_read_conflict_key(self.state_key(key))
        self._file(tr, records)
        if leads:
            begun = state if state.head else self.begin(state, now())
            self.store(tr, key, state, begun, first)

    def _change(
        self,
        tr: Transaction,
        key: bytes,
        asked: Asked,
        shift: Shift,
        fifo: Range,
        now: Now,
        behind: Behind,
    ) -> None:
        old = self._read(tr, key, asked.state)
        if shift.enter and _must_hold(old, key, behind):
            old = replace(old, held=True)
        if shift.took and not old.pointer:  # a take needs a pointer: the state is damaged
            old = self._rebuilt(tr, key)
        gone = {self.place(record) for record in shift.leave}
        state = self.after(old, shift.took, shift.freed, now())
        if shift.took:
            state = self.tell(tr, state, asked, shift.took)
        first = self._first_of(key, fifo, gone, shift.enter) if self.is_open(state) else None
        if self.is_open(state) and (not old.head or old.head in gone):
            self._rely_on(tr, key, first)
        for record in shift.leave:
            tr.clear(self.filed(record))
        self._file(tr, shift.enter)
        self.store(tr, key, old, state, first)
        self._count(tr, key, shift, asked)

    def _first_of(self, key: bytes, fifo: Range, gone: set[bytes], enter: Sequence[Record]) -> Record | None:
        """The first task of the FIFO after `gone` have left it and `enter` have joined it."""
        waiting = self.waiting(key, fifo)
        stays = islice((record for record in waiting if self.place(record) not in gone), 1)
        return min([*stays, *enter], key=self.place, default=None)

    def _rely_on(self, tr: Transaction, key: bytes, first: Record | None) -> None:
        """Conflict with every put before the first task of the FIFO, whichever commits first."""
        fifo = self.fifo(key)
        stop = fifo.stop if first is None else self.filed(first)
        tr.add_read_conflict_range(fifo.start, stop)
        tr.add_write_conflict_range(fifo.start, stop)

    def _file(self, tr: Transaction, records: Sequence[Record]) -> None:
        for record in records:
            tr.set(self.filed(record), record_to_bytes(record))

    def store(self, tr: Transaction, key: bytes, old: KeyState, state: KeyState, head: Record | None) -> None:
        """Store `state`, its pointer at `head`, in place of `old`."""
        pointer = b"" if head is None else self.point(state, head)
        if old.pointer and old.pointer != pointer:
            tr.clear(self._keys.ready_at(old.pointer))
        if head is not None:
            tr.set(self._keys.ready_at(pointer), discipline.stored(head))
        state = replace(state, pointer=pointer, head=b"" if head is None else self.place(head))
        if not (state.pointer or state.taken or state.held or (self.keeps_rounds and state.round)):
            tr.clear(self.state_key(key))
        else:
            tr.set(self.state_key(key), state_to_bytes(state))

    def _read(self, tr: Transaction, key: bytes, value: Value) -> KeyState:
        if not value.present():
            return IDLE
        try:
            return state_of(value.value)
        except DAMAGED:
            return self._rebuilt(tr, key)

    def _rebuilt(self, tr: Transaction, key: bytes) -> KeyState:
        """Rebuild a damaged state from the counters of the key, and its pointer if it is among the first."""
        tr.add_read_conflict_key(self.state_key(key))
        taken = self.counts.numbers(tr, slug_of(key))["taken"] if self.counts_taken else 0
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

    def round_in(self, pointer: bytes) -> int:  # noqa: ARG002
        return 0

    def _ask_pointers(self, tr: Transaction, limit: int) -> Range:
        ready = self._keys.ready
        return tr.snapshot.get_range(ready.start, ready.stop, limit=limit)

    def _merged(
        self, tr: Transaction, pointers: Range, now: Now, limit: int
    ) -> Iterator[tuple[bytes, Record]]:
        """The tasks that single takes would give, in order: each one moves the pointer of its key."""
        ahead = self._pointed(tr, pointers)
        heap: list[Head] = []
        while heap or ahead:
            if ahead and (not heap or ahead[0][0] < heap[0][0]):
                for key in self._heads(tr, ahead[:_KEYS_AHEAD], limit):
                    heappush(heap, key)
                ahead = ahead[_KEYS_AHEAD:]
                if not heap:  # none of these may be followed
                    continue
            place, record, state, rest = heappop(heap)
            yield place, record
            state = self.after(state, [record], 0, now())
            following = next(rest, None) if self.is_open(state) else None
            if following is not None:
                heappush(heap, (self.point(state, following), following, state, rest))

    def _pointed(self, tr: Transaction, pointers: Range) -> list[tuple[bytes, Record]]:
        """The places of the pointers, with their records. As read_index, without a generator for each."""
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
        asked = [
            (tr.snapshot.get(self.state_key(record.key)), self._ask_rest(tr, record, _TASKS_AHEAD))
            for _, record in pointers
        ]
        heads = [
            (place, record, self._read(tr, record.key, state), self._following(tr, rest, limit))
            for (place, record), (state, rest) in zip(pointers, asked, strict=True)
        ]
        return [head for head in heads if self.is_open(head[2])] if self.settling else heads

    def _following(self, tr: Transaction, asked: Range, limit: int) -> Iterator[Record]:
        first = list(read_index(tr, asked, self.mend))
        yield from first
        if len(first) == _TASKS_AHEAD:
            yield from read_index(tr, self._ask_rest(tr, first[-1], limit), self.mend)

    def _ask_rest(self, tr: Transaction, record: Record, limit: int) -> Range:
        fifo = self.fifo(record.key)
        return tr.snapshot.get_range(self.filed(record) + b"\x00", fifo.stop, limit=limit)

    def _ask_fifo(self, tr: Transaction, key: bytes, limit: int) -> Range:
        fifo = self.fifo(key)
        return tr.snapshot.get_range(fifo.start, fifo.stop, limit=limit)

    def fifo(self, key: bytes) -> slice:
        prefix = self._beside + _WAITING + slug_of(key)
        return slice(prefix, prefix + b"\xff" * 33)

    def state_key(self, key: bytes) -> bytes:
        return self._beside + _STATE + slug_of(key)


def _must_hold(state: KeyState, key: bytes, behind: Behind) -> bool:
    return key in behind and not state.held and behind[key]()


class Micro(Keyed):
    """A key with `key_concurrency` tasks taken has no pointer: takers do not see it."""

    counts_taken = True

    def __init__(self, keys: TaskKeys, options: Mapping[str, Any]) -> None:
        super().__init__(keys, options)
        self.alter(options)

    def alter(self, options: Mapping[str, Any]) -> None:
        self._concurrency: int = options["key_concurrency"]
        self.one_each = self._concurrency == 1
        self.settling = options.get("settling") is not None

    def place(self, record: Record) -> bytes:
        return NUMBER.pack(record.pri) + self._keys.order_of(record.id)

    def open(self, state: KeyState) -> bool:
        return state.taken < self._concurrency

    def point(self, state: KeyState, head: Record) -> bytes:  # noqa: ARG002  # heads alone decide
        return self.place(head)

    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:  # noqa: ARG002
        return replace(state, taken=state.taken + len(took) - freed)


_ROUND, _ROUND_BYTES = b"\x03", 8


class Fair(Keyed):
    """Any number of tasks of a key may be taken at a time."""

    counts_taken = False

    def __init__(self, keys: TaskKeys, options: Mapping[str, Any]) -> None:
        super().__init__(keys, options)
        self.alter(options)
        self.round_key = keys.beside + _ROUND

    def alter(self, options: Mapping[str, Any]) -> None:
        """Go by other options, from the next pointer of each key on."""
        self._weights = {bytes.fromhex(key): weight for key, weight in (options["weights"] or {}).items()}

    def place(self, record: Record) -> bytes:
        return self._keys.order_of(record.id)

    def open(self, state: KeyState) -> bool:  # noqa: ARG002
        return True

    def point(self, state: KeyState, head: Record) -> bytes:
        round_, _ = self._turn(state, head)
        return _sorted(round_) + self._keys.order_of(head.id)

    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:  # noqa: ARG002
        for record in took:
            round_, used = self._turn(state, record)
            state = replace(state, round=round_, used=used)
            if round_ < now:
                # Its first put met the last take of that round. Without a new begin, the key would make up
                # for the missed rounds at the expense of the others.
                state = self.begin(state, now)
        return state

    def ask_now(self, tr: Transaction) -> Now:
        current = tr.snapshot.get(self.round_key)
        return lambda: _round_of(current.value)

    def round_in(self, pointer: bytes) -> int:
        return min(int.from_bytes(pointer[:_ROUND_BYTES], "big"), ROUND_MAX)

    def begin(self, state: KeyState, now: int) -> KeyState:
        return replace(state, round=now + 1, used=0)

    def tell(self, tr: Transaction, state: KeyState, asked: Asked, took: Sequence[Record]) -> KeyState:  # noqa: ARG002
        if state.used:  # otherwise `after` has begun a new round, without a taken task yet
            tr.max(self.round_key, state.round.to_bytes(_ROUND_BYTES, "little"))
        return state

    def turn(self, state: KeyState, ahead: Sequence[Record], record: Record, now: int) -> int:
        """The round of `record`, behind the tasks of its key `ahead`."""
        for earlier in ahead:
            state = self.after(state, [earlier], 0, now)
        return self._turn(state, record)[0]

    def of_this_round(self, tr: Transaction, limit: int) -> Iterator[Record]:
        """At most `limit` tasks that come before the next round. Reads by snapshot."""
        now = self.ask_now(tr)()
        places = self.places(tr, limit)
        return (record for _, record in takewhile(lambda at: at[0][:_ROUND_BYTES] <= _sorted(now), places))

    def _turn(self, state: KeyState, record: Record) -> tuple[int, int]:
        """The round of the last unit that the task needs, and the units of that round used after it."""
        weight = self._weights.get(record.key, 1)
        units = state.used + record.cost
        rounds = (units - 1) // weight
        return state.round + rounds, units - rounds * weight


def _round_of(value: bytes | None) -> int:
    """The current round; 0 for a damaged value."""
    round_ = int.from_bytes(value or b"", "little")
    return round_ if round_ < ROUND_MAX else 0


def _sorted(round_: int) -> bytes:
    return round_.to_bytes(_ROUND_BYTES, "big")


# The keys under `beside`, for mending and for a reader that takes nothing.

WAITING, STATE, ROUND, COUNTS, BUSY, LEVEL, FLOOR, DEBT = range(1, 9)


def parts_of(beside: bytes, key: bytes) -> tuple[int, bytes]:
    """The number of the key's column under `beside`, and the part behind it."""
    rest = key[len(beside) :]
    return (rest[0], rest[1:]) if rest else (0, b"")


def is_slug(part: bytes) -> bool:
    """True if the part is a task key with its length in front, and nothing else."""
    return len(part) >= SLUG_BYTES and len(part) == SLUG_BYTES + int.from_bytes(part[:SLUG_BYTES], "big")


def task_key_in(waiting: bytes) -> bytes | None:
    """The task key in the part of a waiting key behind its column; None for another shape."""
    end = SLUG_BYTES + int.from_bytes(waiting[:SLUG_BYTES], "big")
    return waiting[SLUG_BYTES:end] if len(waiting) >= end + ID_BYTES else None


def rebuild(keyed: Keyed, tr: Transaction, key: bytes) -> None:
    """Make the state of a task key and its pointer anew, from its counters and its first task.

    Reads: the state, the counters and the first task of the key, serialisably.
    Writes: the state, the pointer.
    Conflicts: any change of the tasks of the key.
    """
    fifo, counters = keyed.fifo(key), keyed.counts.counts_key(slug_of(key))
    stored, first = tr.get(keyed.state_key(key)), tr.get_range(fifo.start, fifo.stop, limit=1)
    tr.add_read_conflict_key(counters)
    now = keyed.ask_now(tr)
    old = readable_state(stored.value if stored.present() else None) or IDLE
    head = next(keyed.waiting(key, first), None)
    taken = keyed.counts.numbers(tr, slug_of(key))["taken"] if keyed.counts_taken else 0
    state = replace(old, taken=taken)
    if head is not None and not old.head:
        state = keyed.begin(state, now())
    keyed.store(tr, key, old, state, head if keyed.is_open(state) else None)


def ask_place(
    keyed: Keyed, keys: TaskKeys, tr: Transaction, record: Record, limit: int
) -> Callable[[], Callable[[], TaskPlace]]:
    """Ask for the place of a ready task, by snapshot; its numbers count up to `limit`.

    The reply asks for the keys ahead, and its reply is the place. A damaged state counts as none.
    """
    snapshot, now = tr.snapshot, keyed.ask_now(tr)
    state, fifo = snapshot.get(keyed.state_key(record.key)), keyed.fifo(record.key)
    before = snapshot.get_range(fifo.start, keyed.filed(record), limit=limit, streaming_mode=EXACT)

    def pointers() -> Callable[[], TaskPlace]:
        stored = readable_state(state.value if state.present() else None)
        known, ahead = stored or IDLE, list(read_index(tr, before.to_list(), no_mending))
        if not known.pointer:  # its key is busy: the pointer is the one that the key will get
            known = keyed.begin(known, now())
        at = known.pointer or keyed.point(known, ahead[0] if ahead else record)
        start, stop = keys.ready.start, keys.ready_at(at)
        earlier = snapshot.get_range(start, stop, limit=limit, streaming_mode=EXACT)

        def place() -> TaskPlace:
            round_ = keyed.turn(known, ahead, record, now()) if isinstance(keyed, Fair) else None
            current = None if round_ is None else now()
            return TaskPlace(len(earlier.to_list()), len(ahead), True, keyed.open(known), round_, current)

        return place

    return pointers
