"""The partitions of a recipe queue, and a change of their number.

Its items have no task keys, so the change ends at once.
"""

from fdbqueue.core.database import runtime_of
from fdbqueue.core.partitions.current import Current, plan_of, store
from fdbqueue.core.partitions.plan import Partition, PartitionState, Plan, Repartition, begun, ended, lowered
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.seam import Range, Transaction
from fdbqueue.queues.recipe.items import COUNTER, Recipe
from fdbqueue.queues.recipe.parts import RecipeParts


def begin(
    tr: Transaction, registry: Registry, current: Current, parts: RecipeParts, count: int
) -> Repartition:
    """Store the plan for `count` partitions. Closed ones that are empty go.

    Reads: the definition; the closed partitions, results that lie ready and, first, the size, serialisably.
    Writes: the definition; with the first plan, the flag of partition 0, and its doorbell.
    Conflicts: every call on the queue.
    Raises: QueueNotFound, QueueDropped.
    """
    current.guard(tr)()
    name = current.definition.name
    plan = plan_of(registry.find(tr, name))
    before = 1 if plan is None else plan.count
    if plan is None and count == 1:
        return Repartition(before, count, is_finished=True)
    new = plan if plan is not None and before == count else ended(begun(plan, count))
    if plan is None:
        tr.set(parts.shared.flag(0), b"")  # its items have no flag yet
        _wake(tr, parts.zero)
    new = _lowered(tr, parts, new)
    if new != plan:
        store(tr, registry, name, parts.shared, new)
    return Repartition(before, count, is_finished=True)


def _wake(tr: Transaction, zero: Recipe) -> None:
    """Wake the take that waits for partition 0: it has to wait for all. Zero is stored in two ways."""
    size = tr.get(zero.doorbell)
    if not size.present():
        tr.set(zero.doorbell, COUNTER.pack(0))
    elif not any(size.value):
        tr.clear(zero.doorbell)


def _lowered(tr: Transaction, parts: RecipeParts, plan: Plan) -> Plan:
    if plan.high == plan.count or _first(tr, parts.wide.line.keys.due).to_list():
        return plan  # an item that lies ready for a request may come back to its place
    high = plan.high
    while high > plan.count and _is_empty(tr, parts.part(high - 1)):
        high -= 1
        under = parts.shared.under(high)
        tr.clear_range(under.start, under.stop)
        tr.clear(parts.shared.flag(high))
    return plan if high == plan.high else lowered(plan, high)


def _is_empty(tr: Transaction, part: Recipe) -> bool:
    """True without items, in place or on the way to a request, and live requests. Reads serialisably."""
    asked = [_first(tr, under) for under in (part.keys.items, part.keys.pieces)]
    is_used = any(first.to_list() for first in asked)
    return not is_used and part.line.is_left(tr, runtime_of(tr).now_us())  # no other call looks at that line


def _first(tr: Transaction, under: slice) -> Range:
    return tr.get_range(under.start, under.stop, limit=1)


def partitions_of(tr: Transaction, parts: RecipeParts) -> list[Partition]:
    """The partitions that may hold an item, by number. Reads their sizes and flags by snapshot."""
    shared, flags = parts.shared, parts.shared.flags
    found = tr.snapshot.get_range(flags.start, flags.stop)
    sizes, plan = parts.sizes(tr), parts.plan
    flagged = {shared.flagged(flag.key) for flag in found}
    return [
        Partition(
            number=number,
            state=_state(plan, number, size),
            ready=size,
            may_be_ready=number in flagged if plan is not None else size > 0,
            prefix=parts.part(number).keys.prefix,
        )
        for number, size in enumerate(sizes)
    ]


def _state(plan: Plan | None, number: int, size: int) -> PartitionState:
    if plan is None or number < plan.count:
        return PartitionState.OPEN
    return PartitionState.CLOSING if size else PartitionState.CLOSED
