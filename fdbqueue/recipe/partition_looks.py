"""A look at the partitions of a recipe queue."""

from fdbqueue.partitions.looks import Partition, PartitionState
from fdbqueue.partitions.plan import Plan
from fdbqueue.recipe.parts import RecipeParts
from fdbqueue.seam import Transaction


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
