"""Repartition: a change of the number of partitions, under load.

Its begin stores the next plan; each call of the old plan then conflicts. From there on, puts go by the new
number, and nothing new comes into a partition that closes. Task keys that have moved wait in their new
partition until the old one has no ready and no taken task of theirs (parted.py). So their number there
only falls, and a key once seen without any has none for good. The end stores the plan again, after two passes
over the task keys and a serialisable look at the partitions that close. The first pass sees that no key is
leaving a partition. The second lets go of keys that are still held: a task that was set aside as damaged
(`Mender`) has let go of none.

Any process that uses the queue takes the steps in its keeper. Each step can be repeated.
"""

from collections.abc import Callable, Mapping

from fdbqueue.core import limits
from fdbqueue.core.database import at_pace, conflict_in, is_transaction, run, runtime_of
from fdbqueue.core.errors import RepartitionUnderWay, UnsupportedOption
from fdbqueue.core.line.wide import ask_first, is_unused
from fdbqueue.core.partitions import Plan, Repartition, begun, ended, home_of, plan_of, store
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.tasks.parted import any_ordered
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.key_counts import key_of, readable_state
from fdbqueue.tasks.stored.keyed import Keyed, is_slug
from fdbqueue.tasks.stored.records import COUNTER_NAMES, packed


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
    tr.add(shape.keys.counters, packed(COUNTER_NAMES, {"other": 1}))


def repartition(
    parts: Parts, target: DatabaseOrTransaction, count: int, monotonic: Callable[[], float]
) -> Repartition:
    """Begin a change to `count` partitions. Given a database, go as far as possible without waiting."""
    was = 1 if parts.plan is None else parts.plan.count
    plan = parts.shape.registry.write(target, lambda tr: begin(tr, parts.shape, count))
    before = was if plan is None else plan.before or was
    if not is_transaction(target):
        settling, paced = Settling(parts, monotonic), at_pace(target, "upkeep")
        while run(paced, settling.step):
            pass
        plan = parts.plan  # as the last step has found it
    return Repartition(before, count, is_finished=plan is None or not plan.before)


class Settling:
    """The steps of one process towards the end of a repartition."""

    def __init__(self, parts: Parts, monotonic: Callable[[], float]) -> None:
        self._parts = parts
        self._monotonic = monotonic
        self._plan: Plan | None = None
        """The plan whose passes have begun. After a restore of data, an equal one is another."""
        self._pass = 0
        """The pass that has begun: over the old partitions, by number, and then over the new ones."""
        self._after = b""
        """The last task key, as in its key, that this pass has looked at."""
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
            return self._lower(tr, plan)
        if self._plan is not plan:
            self._plan, self._pass, self._after = plan, 0, b""
        if self._pass < plan.before + plan.count and self._keyed(0) is not None:
            return self._pass_keys(tr, plan)
        if not all(_is_drained(tr, self._shape(number)) for number in range(plan.count, plan.before)):
            return False
        _store(tr, self._parts.shape, ended(plan))
        return True

    def _lower(self, tr: Transaction, plan: Plan) -> bool:
        if _lower(tr, self._parts, plan):  # if that conflicts, it is due again
            return True
        self._lower_at = self._monotonic() + limits.PARTITIONS_LOWERED_EVERY_S
        return False

    def _pass_keys(self, tr: Transaction, plan: Plan) -> bool:
        """Look at the next task keys. False if one of them is still leaving its partition."""
        is_old = self._pass < plan.before
        number = self._pass if is_old else self._pass - plan.before
        keyed = self._keyed(number)
        assert keyed is not None
        under = keyed.counts.all_counts if is_old else keyed.states
        start = under.start + self._after + (b"\x00" if self._after else b"")
        rows = tr.snapshot.get_range(start, under.stop, limit=limits.KEYS_LOOKED_AT_MAX).to_list()
        found = {row.key[len(under.start) :]: row.value for row in rows}
        if not is_old and self._let_go(tr, number, found):
            return True  # the same keys come again, in case this does not commit
        for slug, value in found.items():
            if is_old and home_of(key_of(slug), plan.count) != number and any_ordered(value):
                return False
            self._after = slug
        if len(rows) < limits.KEYS_LOOKED_AT_MAX:
            self._pass, self._after = self._pass + 1, b""
        return True

    def _let_go(self, tr: Transaction, number: int, states: Mapping[bytes, bytes]) -> bool:
        """Let go of the task keys that are held. False if there is none."""
        change = self._parts.part(number).change(tr)
        held = [key_of(slug) for slug, value in states.items() if is_slug(slug) and _is_held(value)]
        freed = [change.let_go(key) for key in held]
        change.finish()
        return any(freed)

    def _shape(self, number: int) -> Shape:
        return self._parts.shape.partition(number)

    def _keyed(self, number: int) -> Keyed | None:
        discipline = self._shape(number).discipline
        return discipline if isinstance(discipline, Keyed) else None


def _is_held(state: bytes) -> bool:
    """True, too, for a damaged state: it may be one of a held key."""
    readable = readable_state(state)
    return readable is None or readable.held


def _is_drained(tr: Transaction, shape: Shape) -> bool:
    """True if the partition has no ready and no taken task. Reads serialisably."""
    asked = [ask_first(tr, keys) for keys in (shape.discipline.index, shape.keys.taken)]
    return not any(first.to_list() for first in asked)


def _lower(tr: Transaction, parts: Parts, plan: Plan) -> bool:
    """Let go of the last partitions if they hold nothing. True if there were any."""

    def let_go(number: int) -> bool:
        """True without a task, an ended task and a live request."""
        source, keys = parts.part(number), parts.part(number).shape.keys
        if not is_unused(tr, source.line, runtime_of(tr).now_us(), keys.tasks, keys.ended_times):
            return False
        counters = tr.get(keys.counters)
        if counters.present():
            tr.add(parts.shape.keys.counters, counters.value)
        return True

    left = parts.wide.lowered(tr, plan, let_go)
    if left is not plan:
        _store(tr, parts.shape, left)
    return left is not plan
