"""Capacity: a bound that is never exceeded, without a lock that every put would take.

Puts far below the bound spread over *seats*: conflict keys that hold nothing. A put reads the number of tasks
by snapshot and takes one random seat for each new task. It conflicts only with a put that took one of those
seats meanwhile. The count must leave as many free places as there are seats. Then the bound holds: puts that
committed unseen since that count have a seat of their own each, so there are at most as many as seats.

A put at the edge, with fewer free places, reads all seats and writes the *gate*, which every put reads. It
relies on an exact count, and no put that counted before it can commit after it.
"""

from msgspec import Struct

from fdbqueue.core import limits
from fdbqueue.core.seam import Transaction, Value
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.tasks.records.statistics import count_of
from fdbqueue.tasks.sweep import tidy


class NoRoom(Struct, frozen=True):
    """The answer of a put that does not fit: the size of the queue."""

    size: int
    more_due: bool
    """True if more tasks may have expired than one transaction sweeps: the next attempt may find room."""


def admit(change: Change, live: Value, wanted: int, random: bytes) -> NoRoom | None:
    """None if `wanted` more tasks fit into a queue with a capacity. Conflict keys keep that true until the
    commit.

    Expired tasks make room: the call sweeps at most limits.TIDY_ROUNDS_MAX batches.
    Reads: `live`, already asked for by snapshot.
    Conflicts: a change of a swept task. Far below the capacity: a put that takes one of the same seats, or a
    put at the edge. At the edge: every put.
    """
    capacity = change.shape.settings.capacity or 0
    count, more_due = _make_room(change, count_of(live.value), wanted, capacity)
    fits = admit_to(change.tr, change.shape.keys, capacity, count, wanted, random)
    return None if fits else NoRoom(count, more_due)


def _make_room(change: Change, count: int, wanted: int, capacity: int) -> tuple[int, bool]:
    """Sweep while there is no room. Return the number of tasks, and true if more may have come due."""
    for _ in range(limits.TIDY_ROUNDS_MAX):
        if count + wanted <= capacity or not tidy(change):
            return count, False
        change.finish()
        count = count_of(change.tr.snapshot.get(change.shape.keys.live).value)
    return count, True


def admit_to(tr: Transaction, keys: TaskKeys, capacity: int, count: int, wanted: int, random: bytes) -> bool:
    """True if `wanted` tasks fit beside `count`, which was read by snapshot. Sweeps nothing."""
    if count + wanted > capacity:
        return False
    seats = min(limits.SEATS_MAX, capacity // 2)
    if wanted <= seats and count + wanted + seats <= capacity:
        _sit(tr, keys, seats, wanted, random)
    else:
        _pass_the_gate(tr, keys)
    return True


def _sit(tr: Transaction, keys: TaskKeys, seats: int, wanted: int, random: bytes) -> None:
    first = int.from_bytes(random[:8], "big")
    tr.add_read_conflict_key(keys.gate)
    for number in range(wanted):
        seat = keys.seat((first + number) % seats)
        tr.add_read_conflict_key(seat)
        tr.add_write_conflict_key(seat)


def _pass_the_gate(tr: Transaction, keys: TaskKeys) -> None:
    tr.add_read_conflict_range(keys.seats.start, keys.seats.stop)
    tr.add_read_conflict_key(keys.gate)
    tr.add_write_conflict_key(keys.gate)
