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
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.records.keys import TaskKeys


class NoRoom(Struct, frozen=True):
    """The answer of a put that does not fit: the size of the queue."""

    size: int
    more_due: bool
    """True if more tasks may have expired than one transaction sweeps: the next attempt may find room."""


def admit(tr: Transaction, keys: TaskKeys, capacity: int, count: int, wanted: int, random: bytes) -> bool:
    """True if `wanted` tasks fit beside `count`, which was read by snapshot. Conflict keys keep that true
    until the commit. Sweeps nothing.

    Conflicts: far below the capacity, a put that takes one of the same seats, or a put at the edge; at the
    edge, every put.
    """
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
