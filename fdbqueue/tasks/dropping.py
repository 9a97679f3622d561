"""Dropping a task queue: refused while a live request waits for its tasks, or a live lease holds one.

Dead requests and leases that are over do not prevent a drop, but thousands of them may come before the first
live one. A transaction reads a batch of each. If the batch is full and nothing in it is alive, the
transaction removes the batch, and the next one reads on. The transaction that drops the queue has read both
ranges to their ends, serialisably. So a request or a lease that comes meanwhile conflicts with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.arguments import require_verb_batch, writable
from fdbqueue.core.database import Database, is_transaction, run
from fdbqueue.core.errors import QueueBusy
from fdbqueue.core.line.decision import Ticket
from fdbqueue.core.line.staging import Line
from fdbqueue.core.seam import DatabaseOrTransaction, KeyValue
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.in_all import free_keys
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.records.keys import Record, id_in
from fdbqueue.tasks.sweep import apply, plan


@dataclass(frozen=True)
class Occupants:
    """A batch of requests and a batch of taken tasks, and if they prevent a drop."""

    reason: str | None
    """The reason why the queue cannot be dropped; None if nothing in the batches prevents it."""
    dead: Sequence[Ticket]
    """Requests of dead callers."""
    lapsed: Sequence[Record]
    """Taken tasks with leases that are over."""
    lost: Sequence[KeyValue]
    """Keys of taken tasks that are missing, or cannot be read."""
    are_all: bool
    """True if there are no other requests and no other taken tasks."""


class Dropping:
    """The drop of one queue, or the question what prevents it, in transactions of `target`."""

    def __init__(self, parts: Parts, target: DatabaseOrTransaction, database: Database) -> None:
        self._parts = parts
        self._target = target
        self._database = database

    def busy(self) -> str:
        """As TaskQueue.busy."""
        while True:
            found = run(self._target, lambda tr: self._parts.all_within(writable(tr), self._cleared))
            if found.reason and not self._ended_overdue():
                return found.reason
            if not found.reason and found.are_all:
                return ""
            self._require_more_transactions()

    def drop(self, once: Callable[[], bool]) -> None:
        """As TaskQueue.drop. `once` runs `attempt` about all partitions, as a verb."""
        while not self._is_dropped(once):
            self._require_more_transactions()
        free_keys(self._target, self._parts.shape)

    def attempt(self, changes: Sequence[Change]) -> bool:
        """False if there may be more requests or leases: look again in another transaction."""
        found, shape = self._cleared(changes), self._parts.shape
        if found.reason:
            raise QueueBusy(name=shape.name, reason=found.reason)
        if found.are_all:
            for change in changes:  # it sets unreadable records aside: behind the drop, they would stay
                change.finish()
            if shape.limits is not None:  # leases that are over have their slots still
                shape.limits.give_back_all(changes[0].tr)
            shape.registry.drop(changes[0].tr, shape.name)
        return found.are_all

    def _is_dropped(self, once: Callable[[], bool]) -> bool:
        try:
            return once()
        except QueueBusy:
            if not self._ended_overdue():
                raise
            return False

    def _cleared(self, changes: Sequence[Change]) -> Occupants:
        """Read the occupants, and remove a full batch that prevents no drop."""
        change, line, found = _first_of(changes, self._parts.lines())
        if not found.reason and not found.are_all:
            remove(change, line, found)
        return found

    def _ended_overdue(self) -> bool:
        """True if a call that would answer "busy" should try again; never within a transaction."""
        if is_transaction(self._target):
            return False
        parts = self._parts
        judge = partial(occupants_of_all, lines=parts.lines())
        keeper = keeper_of(self._database, parts.shape.root)
        return keeper.ended_overdue(lambda tr: lambda: not parts.look_at_all(tr, judge).reason)

    def _require_more_transactions(self) -> None:
        """Raises TooMuchForOneTransaction in a transaction."""
        if is_transaction(self._target):
            require_verb_batch(limits.VERB_BATCH + 1)


def occupants_of_all(changes: Sequence[Change], lines: Sequence[Line]) -> Occupants:
    """The occupants of the first partition that cannot go, or has a full batch; of the last one without any
    such. The line of all partitions is judged with partition 0.

    Reads: each, serialisably. Conflicts: a request that joins a line, a take.
    """
    return _first_of(changes, lines)[2]


def _first_of(changes: Sequence[Change], lines: Sequence[Line]) -> tuple[Change, Line, Occupants]:
    homes = [*changes, *changes[:1]]  # the line of all, if there is one, comes last
    found = [(change, line, occupants(change, line)) for change, line in zip(homes, lines, strict=False)]
    return next((one for one in found if one[2].reason or not one[2].are_all), found[-1])


def occupants(change: Change, line: Line) -> Occupants:
    """The first limits.VERB_BATCH requests and taken tasks, judged.

    Reads: both, serialisably. Conflicts: a request that joins the line, a take.
    """
    tr, keys = change.tr, change.shape.keys
    asked = [
        tr.get_range(under.start, under.stop, limit=limits.VERB_BATCH)
        for under in (line.keys.requests, keys.taken)
    ]
    requests, taken = (found.to_list() for found in asked)
    alive, dead = line.alive_and_dead(tr, requests, change.now_us)
    read = change.read(id_in(entry.key) for entry in taken)
    records = [record for record in read if record is not None]
    lost = [entry for entry, record in zip(taken, read, strict=True) if record is None]
    lapsed = [record for record in records if record.until_us <= change.now_us]
    held = "tasks are taken" if len(lapsed) < len(records) else None
    reason = "a call is waiting for tasks" if alive else held
    are_all = max(len(requests), len(taken)) < limits.VERB_BATCH
    return Occupants(reason, dead, lapsed, lost, are_all)


def remove(change: Change, line: Line, found: Occupants) -> None:
    """Remove the dead requests of a batch, and end the leases in it that are over."""
    line.drop_dead(change.tr, found.dead)
    apply(change, plan(found.lapsed, change.now_us))
    for entry in found.lost:
        change.lost(entry.key, entry.value)
