"""Disciplines decide which ready task is next: their interface, and those without task keys.

A discipline keeps the indexes of ready tasks and answers which task is next. Takers read `keys.ready`; if
that is empty, there is nothing to take. `keys.beside` is for further indexes. The life cycle reports every
change of state, of several tasks at a time, so that a discipline can issue its reads together. A discipline
does not depend on time, leases or statistics.

A pointer at it holds the damaged bytes. Takers cannot read these either, so they mend the task, or set
it aside.

Bag: no order. Each ready task lies at a random place of a circle, and takers walk around it.
The place is a hash of the task's id and of the number of its attempts. The id has random bytes, so the place
is random; the record alone tells it; and a task that comes back lies somewhere else.

A take reads from the place where the last take of its process and session ended: the *hand*. Behind the last
place it goes on at the first: both ranges are read in one round trip. A taker that has lost a task to another
one starts again at a random place, so two takers do not walk side by side.

A walk ends: a task waits at most for one way around. A start at a random place for every take would have no
such bound. Such takes fall on every part of the circle alike, and so do the puts. Nothing then thins out a
part that has become dense by chance, and the task in it waits for long (benchmarks/bag.py).

A read that sees the whole bag gives the oldest task first. So all requests of a line agree about their
shares, while there are few tasks.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, Protocol, TypeVar

from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.core.task import READY, TAKEN
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.stored.records import (
    ID_BYTES,
    LIVE_OF,
    NEVER_US,
    NUMBER,
    Record,
    TaskKeys,
    id_in,
    priority_in,
    record_of,
    record_to_bytes,
    sound_record,
)

Mend = Callable[[Transaction, bytes, bytes], Record | None]
"""Given an index key with a damaged value: the record of its task, or None."""


def no_mending(tr: Transaction, key: bytes, value: bytes) -> None:
    """A `Mend` that passes damaged entries over."""


def read_index(tr: Transaction, rows: Iterable[KeyValue], mend: Mend) -> Iterator[Record]:
    """The records of index `rows`; each key ends in the id of its task. Damaged ones are mended."""
    # chain, because map alone would wait for the rows; and a generator would be entered once more.
    return filter(None, map(partial(read_row, tr, mend), chain(rows)))


def read_row(tr: Transaction, mend: Mend, row: KeyValue) -> Record | None:
    try:
        record = record_of(row.value)
    except DAMAGED:
        record = None
    return mend(tr, row.key, row.value) if record is None or not row.key.endswith(record.id) else record


class Mended:
    """Base of a discipline whose damaged entries its queue mends."""

    mend: Mend


class Discipline(Protocol):
    @property
    def index(self) -> slice:
        """The range of all ready tasks, in the order of `filed`, with those that may not be taken now."""

    def filed(self, record: Record) -> bytes:
        """The key of a ready task in `index`; it ends in the task's id."""

    def place(self, record: Record) -> bytes:
        """The order of the task among buried ones; it ends in the task's id."""

    def ask_put(self, tr: Transaction, keys: Collection[bytes]) -> Callable[[Sequence[Record]], None]:
        """Issue the reads for a put of tasks with these task keys; the reply files the new tasks."""

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        """Update the indexes after a change from `olds` to `news`; ended tasks are in `olds` only."""

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        """Ask, by snapshot, for the next tasks; iterating waits. All of them may be taken together."""

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Add read-conflict keys for a take of `records`, apart from those of the tasks themselves."""


class Unread(Record, frozen=True, array_like=True):
    raw: bytes = b""
    """The damaged bytes."""


def read(row: KeyValue, key: bytes, place: bytes) -> Record:
    """The task of the task key `key` at `place`, from its row in the FIFO."""
    id_ = id_in(row.key)
    return sound_record(row.value, id_) or Unread(
        id=id_,
        state=READY,
        pri=priority_in(place[:-ID_BYTES]),
        created_us=0,
        expires_us=NEVER_US,
        ttr_us=NEVER_US,
        size_bytes=0,
        key=key,
        raw=row.value,
    )


def stored(record: Record) -> bytes:
    return record.raw if isinstance(record, Unread) else record_to_bytes(record)


class Fifo(Mended):
    """One ordered index; a task is available as soon as it is ready."""

    def __init__(self, keys: TaskKeys, _: Mapping[str, Any]) -> None:
        self._keys = keys
        self.index = keys.ready
        self.mend = no_mending

    def place(self, record: Record) -> bytes:
        id_ = record.id
        return id_ if id_[1] == self._keys.partition else self._keys.order_of(id_)

    def filed(self, record: Record) -> bytes:
        return self._keys.ready_at(self.place(record))

    def ask_put(
        self,
        tr: Transaction,
        keys: Collection[bytes],  # noqa: ARG002  # the discipline's interface
    ) -> Callable[[Sequence[Record]], None]:
        return partial(self.shift, tr, ())

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        for record in olds:
            if record.state == READY:
                tr.clear(self.filed(record))
        for record in news:
            if record.state == READY:
                tr.set(self.filed(record), record_to_bytes(record))

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        found = tr.snapshot.get_range(self.index.start, self.index.stop, limit=limit)
        return filter(None, map(partial(read_row, tr, self.mend), chain(found)))  # as read_index

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """No conflict keys: a take depends on the tasks alone."""


class Priority(Fifo):
    def place(self, record: Record) -> bytes:
        return NUMBER.pack(record.pri) + super().place(record)


@dataclass
class Shift:
    enter: list[Record] = field(default_factory=list)
    leave: list[Record] = field(default_factory=list)
    took: list[Record] = field(default_factory=list)
    freed: int = 0
    numbers: Counter[str] = field(default_factory=Counter)

    @property
    def changes_state(self) -> bool:
        return bool(self.leave or self.took or self.freed)


def shifts_by_key(olds: Sequence[Record], news: Sequence[Record], counts_taken: bool) -> dict[bytes, Shift]:
    """The change from `olds` to `news`. `counts_taken`: the end of a lease changes the state of its key."""
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
        if record.state == READY:
            of(record).leave.append(record)
        elif counts_taken and _no_longer(TAKEN, record, becomes):
            of(record).freed += 1
    for record in news:
        of(record).numbers[LIVE_OF[record.state]] += 1
        if record.state == READY:
            of(record).enter.append(record)
        elif _no_longer(TAKEN, record, was):
            of(record).took.append(record)
    return shifts


def _no_longer(state: str, record: Record, other: Mapping[bytes, str]) -> bool:
    return record.state == state and other.get(record.id) != state


PLACE_BYTES = 8
_ATTEMPTS_BYTES = 9  # any whole number of a record, a damaged one, too

Row = TypeVar("Row", bound="HasKey")


class HasKey(Protocol):
    @property
    def key(self) -> bytes: ...


class Bag(Fifo):
    takes_anywhere = True

    def __init__(self, keys: TaskKeys, options: Mapping[str, Any]) -> None:
        super().__init__(keys, options)
        self._hand: bytes = self.index.start
        """The key at which the next take begins. It is advice: any other one is right, too."""

    def place(self, record: Record) -> bytes:
        """Buried tasks have an order: that of their arrival."""
        return record.id

    def filed(self, record: Record) -> bytes:
        attempts = record.attempts.to_bytes(_ATTEMPTS_BYTES, "big", signed=True)
        place = blake2b(record.id + attempts, digest_size=PLACE_BYTES).digest()
        return self._keys.ready_at(place + record.id)

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        ready, snapshot = self.index, tr.snapshot
        hand = self._hand  # read once: the takes of other threads move it
        ahead = snapshot.get_range(hand, ready.stop, limit=limit)
        behind = snapshot.get_range(ready.start, hand, limit=limit)
        return read_index(tr, _rows(ahead, behind, limit), self.mend)

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:  # noqa: ARG002  # as in Fifo
        """No conflict keys. The hand moves to the last of `records`."""
        if records:
            self._hand = self.filed(records[-1])

    def start_at(self, random: bytes) -> None:
        self._hand = self._keys.ready_at(random)


def around(ahead: Sequence[Row], behind: Sequence[Row], limit: int) -> Sequence[Row]:
    """The next entries of the circle, at most `limit`.

    `ahead` are the first `limit` entries from the hand on, and `behind` those from the start up to the hand.
    If these are all entries, they come in the order of arrival.
    """
    if len(ahead) >= limit:
        return ahead
    if len(behind) >= limit:
        return [*ahead, *behind[: limit - len(ahead)]]
    return sorted([*ahead, *behind], key=lambda row: id_in(row.key))


def _rows(ahead: Range, behind: Range, limit: int) -> Iterator[KeyValue]:
    yield from around(ahead.to_list(), behind.to_list(), limit)
