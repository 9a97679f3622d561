"""The wait of a put for room in a queue with a bound, in one process.

An attempt that finds no room waits for a change of the queue's counters. Before a put fails, it ends overdue
sessions once: a take for a released task may make room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.source import TaskSource

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
        asked = [tr.snapshot.get(source.shape.keys.live) for source in self._sources()]
        return lambda: sum(self._size_of(live.value) for live in asked) + self._wanted <= self._size_max()

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
        return Full(tr.watch(shape.keys.live if shape.plan is None else shape.shared.room), due_us)
