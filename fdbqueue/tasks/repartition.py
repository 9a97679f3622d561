"""Repartition: a change of the number of partitions, under load.

Its begin stores the next plan; each call of the old plan then conflicts. From there on, puts go by the new
number, and nothing new comes into a partition that closes. Task keys that have moved wait in their new
partition until the old one has no ready and no taken task of theirs (partitioning.py). So their number there
only falls, and a key once seen without any has none for good. The end stores the plan again, after one pass
over the task keys and a serialisable look at the partitions that close.

Any process that uses the queue takes the steps in its keeper. Each step can be repeated.
"""

from collections.abc import Callable

from fdbqueue import limits
from fdbqueue.database import conflict_in
from fdbqueue.disciplines.key_counts import key_of
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.errors import RepartitionUnderWay, UnsupportedOption
from fdbqueue.partitions.current import plan_of, store
from fdbqueue.partitions.plan import Plan, begun, ended, home_of, lowered
from fdbqueue.records.keys import TaskKeys
from fdbqueue.records.statistics import CALLS, LIVE, packed, unpacked
from fdbqueue.seam import Range, Transaction
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.shape import Shape


def begin(tr: Transaction, shape: Shape, count: int) -> Plan | None:
    """Store the plan for `count` partitions. Return it; the present one if that has this number.

    Reads: the definition, the pause.
    Writes: the definition; the flag of partition 0 and the pauses of new partitions.
    Conflicts: every call on the queue.
    Raises: RepartitionUnderWay, QueueNotFound, QueueDropped, UnsupportedOption.
    """
    shape.guard(tr)()
    paused = tr.get(shape.keys.paused)
    found = shape.registry.find(tr, shape.name)
    plan = plan_of(found)
    if (1 if plan is None else plan.count) == count:
        return plan
    if plan is not None and plan.before:
        raise RepartitionUnderWay(name=shape.name, before=plan.before, partitions=plan.count)
    if shape.kind.supports("key") and not isinstance(shape.discipline, Keyed):
        raise UnsupportedOption(kind=shape.kind.name, option="another number of partitions")
    new = begun(plan, count)
    if paused.present():
        for number in range(1 if plan is None else plan.high, new.high):
            tr.set(shape.partition(number).keys.paused, b"")
    if plan is None:  # its ready tasks have no flag yet
        tr.set(shape.shared.flag(0), b"")
    _store(tr, shape, new)
    return new


def _store(tr: Transaction, shape: Shape, plan: Plan) -> None:
    """Store the plan, and wake the takes that wait."""
    store(tr, shape.registry, shape.name, shape.shared, plan)
    tr.add(shape.keys.calls, packed(CALLS, {"other": 1}))


class Settling:
    """The steps of one process towards the end of a repartition."""

    def __init__(self, parts: Parts, monotonic: Callable[[], float]) -> None:
        self._parts = parts
        self._monotonic = monotonic
        self._epoch = -1
        self._partition = 0
        self._after = b""
        """The last task key, as in its key, of `_partition` that has been looked at."""
        self._lower_at = float("-inf")

    def is_due(self) -> bool:
        plan = self._parts.plan
        if plan is None:
            return False
        return bool(plan.before) or (plan.high > plan.count and self._monotonic() >= self._lower_at)

    def step(self, tr: Transaction) -> bool:
        """Take one step. False if there is none to take now.

        Reads: the definition; a batch of counters by snapshot, or the partitions that close, serialisably.
        Writes: the definition, at the end.
        Conflicts: then, every call on the queue.
        """
        plan = self._parts.plan
        self._parts.zero.guard(tr)()
        if self._parts.plan is not plan:  # another thread has met a newer plan than this transaction sees
            raise conflict_in(tr)
        if plan is None or not self.is_due():
            return False
        if not plan.before:
            self._lower_at = self._monotonic() + limits.PARTITIONS_LOWERED_EVERY_S
            return _lower(tr, self._parts, plan)
        if self._epoch != plan.epoch:
            self._epoch, self._partition, self._after = plan.epoch, 0, b""
        if self._partition < plan.before and self._keyed(0) is not None:
            return self._pass_keys(tr, plan)
        if not all(_is_drained(tr, self._shape(number)) for number in range(plan.count, plan.before)):
            return False
        _store(tr, self._parts.shape, ended(plan))
        return True

    def _pass_keys(self, tr: Transaction, plan: Plan) -> bool:
        """Look at the next task keys. False if one of them is still leaving its partition."""
        keyed = self._keyed(self._partition)
        assert keyed is not None
        under = keyed.counts.all_counts
        start = under.start + self._after + (b"\x00" if self._after else b"")
        rows = tr.snapshot.get_range(start, under.stop, limit=limits.KEYS_LOOKED_AT_MAX).to_list()
        for row in rows:
            slug = row.key[len(under.start) :]
            numbers = unpacked(LIVE, row.value)
            leaves = home_of(key_of(slug), plan.count) != self._partition
            if leaves and (numbers["ready"] or numbers["taken"]):
                return False
            self._after = slug
        if len(rows) < limits.KEYS_LOOKED_AT_MAX:
            self._partition, self._after = self._partition + 1, b""
        return True

    def _shape(self, number: int) -> Shape:
        return self._parts.shape.partition(number)

    def _keyed(self, number: int) -> Keyed | None:
        discipline = self._shape(number).discipline
        return discipline if isinstance(discipline, Keyed) else None


def _is_drained(tr: Transaction, shape: Shape) -> bool:
    """True if the partition has no ready and no taken task. Reads serialisably."""
    asked = [_first(tr, keys) for keys in (shape.discipline.index, shape.keys.taken)]
    return not any(first.to_list() for first in asked)


def _lower(tr: Transaction, parts: Parts, plan: Plan) -> bool:
    """Let go of the last partitions if they hold nothing. True if there were any."""
    high, shape = plan.high, parts.shape
    while high > plan.count and _is_empty(tr, shape.partition(high - 1).keys):
        high -= 1
        calls = tr.get(shape.partition(high).keys.calls)
        if calls.present():
            tr.add(shape.keys.calls, calls.value)
        under = shape.shared.under(high)
        tr.clear_range(under.start, under.stop)
        tr.clear(shape.shared.flag(high))
    if high == plan.high:
        return False
    _store(tr, shape, lowered(plan, high))
    return True


def _is_empty(tr: Transaction, keys: TaskKeys) -> bool:
    """True if the partition has no task, no ended task and no request. Reads serialisably."""
    line = slice(keys.line, keys.line + b"\xff")
    asked = [_first(tr, under) for under in (keys.tasks, keys.ended_times, line)]
    return not any(first.to_list() for first in asked)


def _first(tr: Transaction, under: slice) -> Range:
    return tr.get_range(under.start, under.stop, limit=1)
