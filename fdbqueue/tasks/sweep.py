"""Sweeping: tasks with a delay that is over, a lease that is over, or a ttl that is over.

Plan (pure), then apply (bounded). Takes sweep on their way, and so does, in the background, every process
that has opened a queue. Several sweeps at once do no harm: each reads a task serialisably, so the second one
finds it changed and has nothing to do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fdbqueue.core import limits
from fdbqueue.core.line.decision import Swept
from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.records.keys import Record, TaskKeys, id_in


@dataclass(frozen=True)
class Plan:
    """The tasks that are due, by the change they need. One that becomes ready may be expired as well."""

    lapsed: Sequence[Record]
    due: Sequence[Record]
    expired: Sequence[Record]


class Budget:
    """The part of a batch that is left, in a transaction that sweeps several partitions."""

    def __init__(self) -> None:
        self._tasks = limits.DUE_BATCH
        self.moved_bytes = 0
        """Bytes that have gone into other partitions so far."""
        self._told_bytes = 0

    def give(self, timers: Sequence[KeyValue]) -> Sequence[KeyValue]:
        given = timers[: self._tasks]
        self._tasks -= len(given)
        return given

    def told(self, found: Sequence[Record | None]) -> Sequence[Record | None]:
        """The first of these tasks, as far as a callback may be told of them: the sweep reads their payloads,
        and 50 of the largest take longer than the five seconds of a transaction.
        """
        for at, record in enumerate(found):
            size_bytes = 0 if record is None else record.size_bytes
            if self._told_bytes and self._told_bytes + size_bytes > limits.TRANSACTION_BYTES_MAX:
                return found[:at]
            self._told_bytes += size_bytes
        return found


def plan(records: Iterable[Record], now_us: int) -> Plan:
    over = {record.id: record for record in records if record.timer_us <= now_us}.values()
    lapsed = [record for record in over if record.state == TaskState.TAKEN]
    due = [record for record in over if record.state == TaskState.DELAYED]
    expired = [record for record in over if record.state in (TaskState.READY, TaskState.BURIED)]
    return Plan(lapsed, due, expired)


def apply(change: Change, planned: Plan, stays: bool = False) -> list[Record]:
    """Carry the plan out. Return the tasks that are ready now. `stays`: as in edges.due."""
    back = [*edges.lease_over(change, planned.lapsed), *edges.due(change, planned.due, stays)]
    gone = [record for record in back if record.expires_us <= change.now_us]
    edges.expire(change, [*gone, *planned.expired])
    return [record for record in back if record.expires_us > change.now_us]


def catch_up(change: Change, record: Record) -> Record | None:
    """The task as it is now, after a sweep of it; None if it has expired."""
    if record.timer_us > change.now_us:
        return record
    back = apply(change, plan([record], change.now_us), stays=True)
    return back[0] if back else None


def as_of(record: Record, now_us: int) -> Record | None:
    """The task as it is at `now_us`, swept or not; None if it has expired."""
    if record.timer_us > now_us:
        return record
    waits = record.state in (TaskState.TAKEN, TaskState.DELAYED) and not record.cancelled_us
    return edges.freed(record) if waits and record.expires_us > now_us else None


def ask_due(tr: Transaction, keys: TaskKeys, now_us: int) -> Range:
    until = keys.timers_until(now_us)
    return tr.snapshot.get_range(until.start, until.stop, limit=limits.DUE_BATCH)


def sweep_timers(change: Change, timers: Sequence[KeyValue], budget: Budget) -> Swept:
    if not timers:
        return Swept.NOTHING
    read = change.read([id_in(timer.key) for timer in timers])
    found = budget.told(read) if change.tells else read
    planned = plan([record for record in found if record is not None], change.now_us)
    due = change.joinable(planned.due, budget.moved_bytes)
    ready = apply(change, replace(planned, due=due))
    budget.moved_bytes += change.moved_bytes
    for timer, record in zip(timers[: len(found)], found, strict=True):
        # A timer without its task, or of a task with another timer: every sweep would find it due.
        if record is None or record.timer_us != change.shape.keys.time_of(timer.key):
            change.tr.clear(timer.key)
    # A task that was cancelled, has expired or has another timer is not ready.
    return Swept.LEASES if len(ready) == len(planned.lapsed) == len(timers) else Swept.MORE
