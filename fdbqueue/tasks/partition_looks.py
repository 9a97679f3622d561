"""Looks at the partitions of a queue: the load and the state of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fdbqueue.partitions.plan import Plan
from fdbqueue.records.statistics import CALLS, LIVE, unpacked
from fdbqueue.tasks.change import Change


class PartitionState(StrEnum):
    OPEN = "open"
    """It gets new tasks."""
    CLOSING = "closing"
    """It gets no new tasks, and takes drain it."""
    CLOSED = "closed"
    """It has only delayed, buried and ended tasks. These join another partition when they become ready."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a task queue, and its tasks in each state."""

    number: int
    state: PartitionState
    ready: int
    taken: int
    buried: int
    delayed: int
    puts: int
    """Number of tasks put into it so far."""
    takes: int
    """Number of tasks taken from it so far."""
    may_be_ready: bool
    """True if it has a flag: takes look here."""
    prefix: bytes
    """All its keys begin with this. Partition 0 is the queue itself: those of others begin with it, too."""


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
            keys.partition,
            PartitionState.OPEN if plan is None else _state(plan, keys.partition),
            tasks["ready"],
            tasks["taken"],
            tasks["buried"],
            tasks["delayed"],
            done["put"],
            done["take"],
            plan is None or bool(flag.present()),
            keys.prefix,
        )

    return reply


def _state(plan: Plan, number: int) -> PartitionState:
    if number < plan.count:
        return PartitionState.OPEN
    return PartitionState.CLOSING if number < plan.before else PartitionState.CLOSED
