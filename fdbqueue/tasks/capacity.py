"""Capacity: a bound that is never exceeded, without a lock that every put would take; and the wait for room.

Puts far below the bound spread over *seats*: conflict keys that hold nothing. A put reads the number of tasks
by snapshot and takes one random seat for each new task. It conflicts only with a put that took one of those
seats meanwhile. The count must leave as many free places as there are seats. Then the bound holds: puts that
committed unseen since that count have a seat of their own each, so there are at most as many as seats.

A put at the edge, with fewer free places, reads all seats and writes the *gate*, which every put reads. It
relies on an exact count, and no put that counted before it can commit after it.

The wait of a put for room, in one process: an attempt that finds no room waits for a change of the queue's
counters. Before a put fails, it ends overdue sessions once: a take for a released task may make room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import NoRoom
from fdbqueue.tasks.source import TaskSource
from fdbqueue.tasks.stored.records import TaskKeys


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


T = TypeVar("T")


@dataclass(frozen=True)
class Full:
    """A full queue: the watch of a key that changes with its room, and the time of the next expiry."""

    changed: Future
    due_us: int | None


class Room:
    """The room for `wanted` more tasks in a queue with at most `size_max` tasks."""

    def __init__(
        self,
        database: Database,
        sources: Callable[[], Sequence[TaskSource]],
        size_of: Callable[[bytes | None], int],
        size_max: Callable[[], int],
        wanted: int,
    ) -> None:
        """`sources`: the partitions that may hold a task; together they have the room. `size_of` tells the
        size by the value of the counters of one. `size_max` may change meanwhile.
        """
        self._database = database
        self._sources = sources
        self._size_of = size_of
        self._size_max = size_max
        self._wanted = wanted

    def put(self, attempt: Callable[[], T | NoRoom], until: float, waiter: Waiter) -> T | NoRoom:
        """Repeat `attempt` until it finds room or the time is `until` (runtime.monotonic()), at least once.

        More tasks than `size_max` do not wait: there can never be room for them.
        """
        answer = self._attempts(attempt, until, waiter)
        if isinstance(answer, NoRoom):
            keeper = keeper_of(self._database, self._sources()[0].shape.root)
            if keeper.ended_overdue(self._ask_fits):
                return self._attempts(attempt, until, waiter)
        return answer

    def _attempts(self, attempt: Callable[[], T | NoRoom], until: float, waiter: Waiter) -> T | NoRoom:
        while isinstance(answer := attempt(), NoRoom):
            if answer.more_due:
                continue
            if self._wanted > self._size_max() or self._database.runtime.monotonic() >= until:
                return answer
            self._wait(until, waiter)
        return answer

    def _ask_fits(self, tr: Transaction) -> Callable[[], bool]:
        asked = [tr.snapshot.get(source.shape.keys.counters) for source in self._sources()]
        return lambda: (
            sum(self._size_of(counters.value) for counters in asked) + self._wanted <= self._size_max()
        )

    def _wait(self, until: float, waiter: Waiter) -> None:
        full = run(self._database, self._look)
        if full is None:
            return
        runtime = self._database.runtime
        patience_s = min(limits.LOOK_EVERY_S, until - runtime.monotonic())
        if full.due_us is not None:
            patience_s = min(patience_s, full.due_us / 1_000_000 - runtime.now())
        waiter.sleep([full.changed], patience_s)

    def _look(self, tr: Transaction) -> Full | None:
        zero = self._sources()[0]
        return zero.look(tr, self._watch_if_full, zero.shape.plan)

    def _watch_if_full(self, change: Change) -> Full | None:
        tr, sources = change.tr, self._sources()
        fits, asked = self._ask_fits(tr), [source.ask_next_due(tr) for source in sources]
        if fits():
            return None
        due_us = min((due for reply in asked if (due := reply()) is not None), default=None)
        shape = sources[0].shape
        return Full(tr.watch(shape.keys.counters if shape.plan is None else shape.shared.room), due_us)
