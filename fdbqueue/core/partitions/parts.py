"""Parts: the partitions of one queue in one process, and its takes from them.

Without partitions, the queue is its own only part.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from fdbqueue.core.line.taking import Takes
from fdbqueue.core.partitions.current import Current
from fdbqueue.core.partitions.plan import Plan
from fdbqueue.core.runtime import Runtime


class Holder(Protocol):
    """The session of a take, or the process."""

    @property
    def lost(self) -> bool:
        """True if it takes nothing any more."""


class Process:
    """The holder of takes that belong to no session."""

    lost = False


P = TypeVar("P")
H = TypeVar("H", bound=Holder)

WIDE = -1
"""The number of all partitions together, among the takes."""


class Partitioned(Generic[P]):
    def __init__(self, current: Current | None, make: Callable[[int], P]) -> None:
        """`make` makes the items of a partition. `current`: the plan; None for a queue without a name."""
        self.current = current
        self._make = make
        self.zero = make(0)
        self._known = [self.zero]

    @property
    def plan(self) -> Plan | None:
        """The present plan; None for a queue without partitions."""
        return None if self.current is None else self.current.plan

    def holding(self) -> Sequence[P]:
        """The partitions that may hold an item, by the present plan."""
        plan = self.plan
        return self.upto(1 if plan is None else plan.high)

    def part(self, number: int) -> P:
        return self.upto(number + 1)[number]

    def upto(self, high: int) -> Sequence[P]:
        """The partitions below the number `high`."""
        known = self._known
        if len(known) < high:
            known = [*known, *map(self._make, range(len(known), high))]
            self._known = known  # replaced as a whole: threads read it without a lock
        return known[:high]


class TakesOfParts(Generic[H]):
    """The takes of each holder from a partition, or from all together: only these combine."""

    def __init__(
        self,
        runtime: Runtime,
        parts: Partitioned[Any],
        make: Callable[[H, int, Callable[[], bool]], Takes],
    ) -> None:
        """`make(holder, number, has_ended)` makes takes; `has_ended`: as in `Takes`."""
        self._lock = runtime.lock()
        self._parts = parts
        self._make = make
        self.known: dict[tuple[H, int], Takes] = {}
        """Those that have been made: replaced as a whole, so threads read it without a lock."""
        if parts.current is not None:
            parts.current.on_partitions(self._end_waits_elsewhere)

    def of(self, holder: H, number: int) -> Takes:
        with self._lock:
            found = self.known.get((holder, number))
            if found is None:
                living = {known: takes for known, takes in self.known.items() if not known[0].lost}
                ended = self._has_no_parts if number == WIDE else self._has_parts
                found = self._make(holder, number, ended)
                self.known = {**living, (holder, number): found}
            return found

    def _has_parts(self) -> bool:
        return self._parts.plan is not None

    def _has_no_parts(self) -> bool:
        return self._parts.plan is None

    def _end_waits_elsewhere(self) -> None:
        """Let takes that wait for partition 0 wait for all; or the other way round."""
        ended = WIDE if self._parts.plan is None else 0
        for (_, number), takes in list(self.known.items()):
            if number == ended:
                takes.end_waits()
