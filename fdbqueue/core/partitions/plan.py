"""Plan: how many partitions a queue has, and the place of each task key. Pure functions over values.

A plan is part of the definition, which every call reads. A repartition stores the next plan at once: from
then on, puts go by the new number of partitions. It is under way until the partitions of the old number have
nothing left that the order of a task key depends on. Then its end stores the plan once more.
"""

import hashlib
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_whole

_SCORE_BYTES = 4
_SCORES = {n: struct.Struct(f">{n}I") for n in range(1, limits.PARTITIONS_MAX + 1)}


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The partitions of a queue. Append fields with a default; never reorder them."""

    epoch: int
    """The number of changes of the plan."""
    count: int
    """The open partitions are those from 0 to count - 1: only they get new tasks."""
    before: int = 0
    """The number of open partitions before the repartition that is under way; 0 if none is."""
    high: int = 0
    """Partitions from this number on hold nothing."""

    @property
    def serving(self) -> int:
        """The partitions below this number may have ready tasks: the open ones, and those that close."""
        return max(self.count, self.before)

    @property
    def may_have_moved(self) -> bool:
        """True if a task may be in another partition than the one in its id."""
        return self.epoch > 0

    def is_sound(self) -> bool:
        most = limits.PARTITIONS_MAX
        return 0 < self.count <= most and 0 <= self.before <= most and self.serving <= self.high <= most


def checked_partitions(count: int) -> int:
    return checked_whole("partitions", count, 1, limits.PARTITIONS_MAX)


def first_plan(count: int) -> Plan | None:
    return Plan(0, count, 0, count) if count > 1 else None


def begun(plan: Plan | None, count: int) -> Plan:
    """The plan with which a repartition to `count` begins."""
    if plan is None:
        return Plan(1, count, 1, count)
    return Plan(plan.epoch + 1, count, plan.count, max(plan.high, count))


def ended(plan: Plan) -> Plan:
    """The plan after the repartition that was under way."""
    return replace(plan, epoch=plan.epoch + 1, before=0)


def lowered(plan: Plan, high: int) -> Plan:
    """The plan after the last partitions have become empty."""
    return replace(plan, epoch=plan.epoch + 1, high=high)


@lru_cache(maxsize=limits.TASK_KEYS_PLACED)
def home_of(key: bytes, count: int) -> int:
    """The partition of a task key, or of another name, among `count`: the one with its highest score.

    With another number of partitions, only those keys move for which a new partition has the highest score,
    or whose partition has gone.
    """
    scores = _scores(key, count)
    return scores.index(max(scores))


def homes_of(member: bytes, members: Collection[bytes], count: int) -> list[int]:
    """The partitions from which `member` takes first: those for which it has the highest score of all
    `members`. Without any, the one for which it has its own highest score.
    """
    scores = {one: _scores(one, count) for one in {*members, member}}
    mine = scores[member]
    owned = [
        n for n in range(count) if all((mine[n], member) >= (other[n], one) for one, other in scores.items())
    ]
    return owned or [home_of(member, count)]


def _scores(name: bytes, count: int) -> Sequence[int]:
    """A score of `name` for each partition. Those of the first partitions do not depend on `count`."""
    digest = hashlib.shake_128(name).digest(_SCORE_BYTES * count)
    return _SCORES[count].unpack(digest)


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
