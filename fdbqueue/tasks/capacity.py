"""Capacity: a bound that is never exceeded, without a lock that every put would take.

Puts far below the bound spread over *seats*: conflict keys that hold nothing. A put reads the number of tasks
by snapshot, takes one seat per task at random, and conflicts only with a put that took one of those seats
since. If the number it saw leaves as many free places as there are seats, the bound holds: among the puts
that have committed unseen since the newest count any of them relied on, each sits in a seat of its own. A
put at the edge, where fewer places are free, reads all seats and writes the *gate*, which every put reads:
it relies on an exact count, and no put that counted before it can commit after it.
"""

from dataclasses import dataclass

from fdbqueue import limits
from fdbqueue.records.keys import TaskKeys
from fdbqueue.records.statistics import count_of
from fdbqueue.seam import Transaction, Value
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.sweep import tidy


@dataclass(frozen=True)
class NoRoom:
    """There are so many tasks, and a put did not fit."""

    size: int
    more_due: bool
    """Whether it was not seen to the end what has expired: another transaction may make room."""


def admit(change: Change, live: Value, wanted: int, random: bytes) -> NoRoom | None:
    """Whether `wanted` more tasks fit; if so, conflicts see to it that they still do at the commit.

    `live` has been asked for by snapshot. Expired tasks make room: they are looked for among what has come
    due, limits.TIDY_ROUNDS_MAX batches of it. Conflicts with other puts: far below the capacity with those in
    the same seats, at the edge with all of them; with other changes of what has come due; with nothing else.
    """
    capacity = change.shape.settings.capacity
    if not capacity:
        return None
    count, more_due = _make_room(change, count_of(live.value), wanted, capacity)
    fits = admit_to(change.tr, change.shape.keys, capacity, count, wanted, random)
    return None if fits else NoRoom(count, more_due)


def _make_room(change: Change, count: int, wanted: int, capacity: int) -> tuple[int, bool]:
    """How many tasks there are then, and whether more may have come due."""
    for _ in range(limits.TIDY_ROUNDS_MAX):
        if count + wanted <= capacity or not tidy(change):
            return count, False
        change.finish()
        count = count_of(change.tr.snapshot.get(change.shape.keys.live).value)
    return count, True


def admit_to(tr: Transaction, keys: TaskKeys, capacity: int, count: int, wanted: int, random: bytes) -> bool:
    """Whether they fit, where there are `count`, read by snapshot, and nothing expires."""
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
