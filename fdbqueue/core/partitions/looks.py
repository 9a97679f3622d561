"""Values that tell of partitions: each of them, and a change of their number."""

from dataclasses import dataclass
from enum import StrEnum


class PartitionState(StrEnum):
    OPEN = "open"
    """It gets new items."""
    CLOSING = "closing"
    """It gets no new items, and takes drain it."""
    CLOSED = "closed"
    """It has only delayed, buried and ended tasks, or nothing. Such tasks join another partition when they
    become ready.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a queue, and its tasks in each state; those of a recipe queue are all ready."""

    number: int
    state: PartitionState
    ready: int
    taken: int = 0
    buried: int = 0
    delayed: int = 0
    puts: int | None = None
    """Number of tasks put into it so far; None in a recipe queue, which does not count calls."""
    takes: int | None = None
    """Number of tasks taken from it so far; None as for `puts`."""
    may_be_ready: bool
    """True if it has a flag: takes look here."""
    prefix: bytes
    """All its keys begin with this. Partition 0 is the queue itself: those of others begin with it, too."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """A change of the number of partitions, from `before` to `partitions`."""

    before: int
    partitions: int
    is_finished: bool
    """False while a partition of the old number still has tasks that others wait for."""
