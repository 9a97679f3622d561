"""Bag: no order. Each ready task lies at a random place of a circle, and takers walk around it.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.tasks.disciplines.discipline import Fifo, read_index
from fdbqueue.tasks.records.keys import Record, TaskKeys, id_in

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
