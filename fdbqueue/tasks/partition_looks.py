"""Looks at the partitions of a queue: the load and the state of each."""

from collections.abc import Callable, Sequence

from fdbqueue.core.partitions.plan import Partition, PartitionState, Plan
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.records.statistics import CALLS, LIVE, unpacked


def partitions_in(changes: Sequence[Change]) -> list[Partition]:
    """Reads: the counters and flags, by snapshot. Round trips: 1."""
    asked = [_ask(change) for change in changes]
    return [reply() for reply in asked]


def _ask(change: Change) -> Callable[[], Partition]:
    keys, snapshot, plan = change.shape.keys, change.tr.snapshot, change.plan
    live, calls = snapshot.get(keys.live), snapshot.get(keys.calls)
    flag = snapshot.get(change.shape.shared.flag(keys.partition))

    def reply() -> Partition:
        tasks, done = unpacked(LIVE, live.value), unpacked(CALLS, calls.value)
        return Partition(
            number=keys.partition,
            state=PartitionState.OPEN if plan is None else _state(plan, keys.partition),
            **tasks,
            puts=done["put"],
            takes=done["take"],
            may_be_ready=plan is None or bool(flag.present()),
            prefix=keys.prefix,
        )

    return reply


def _state(plan: Plan, number: int) -> PartitionState:
    if number < plan.count:
        return PartitionState.OPEN
    return PartitionState.CLOSING if number < plan.before else PartitionState.CLOSED
