"""RecipeParts: the items of a queue in all its partitions; without partitions, in the queue itself.

It has the methods of one partition (items.py), so a handle and its services need not know how many there are.
Items have no task keys, so a change of the number of partitions ends at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.database import conflict_in, runtime_of
from fdbqueue.core.line.decision import Offer, Swept
from fdbqueue.core.line.staging import Results
from fdbqueue.core.line.taking import Taken
from fdbqueue.core.line.wide import Partitioned, Turns, Wide, grouped, is_unused, partition_of
from fdbqueue.core.page import Page, no_place, place_text
from fdbqueue.core.partitions import (
    Current,
    Partition,
    PartitionGone,
    PartitionState,
    Plan,
    Repartition,
    SharedKeys,
    begun,
    ended,
    plan_of,
    prefix_of,
    store,
)
from fdbqueue.core.registry import Guard, Registry
from fdbqueue.core.seam import Range, Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.queues.recipe.items import COUNTER, Recipe, size_of
from fdbqueue.queues.recipe.keys import QueueKeys

_PLACE = b"\x00"
"""The first byte of a place with a partition. That of a place in a queue without any is another."""


class WideRecipe(Wide[Recipe]):
    """All partitions as one source."""

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:
        """Ask for items that lie ready, past their deadlines, in any line: few takes look there. The reply
        returns those of one line.
        """
        lines = [self.line, *(part.line for part in self._holding())]
        asked = [(line.results, line.results.ask_due(tr)) for line in lines]
        return lambda: _returned_first(tr, asked, now_us)

    def hold_back(self, tr: Transaction, offers: Sequence[Offer]) -> tuple[list[Offer], list[Any]]:
        """As Recipe.hold_back."""
        kept: list[Offer] = []
        values: list[Any] = []
        for number, few in grouped(offers, partition_of).items():
            some_kept, some_values = self.part(number).hold_back(tr, few)
            kept, values = [*kept, *some_kept], [*values, *some_values]
        return kept, values


def _returned_first(tr: Transaction, asked: Sequence[tuple[Results, Range]], now_us: int) -> Swept:
    """Return the overdue results of the first line that has some: one batch is enough for a transaction."""
    for results, due in asked:
        overdue = results.overdue(due, now_us)
        if overdue:
            results.return_overdue(tr, overdue)
            return Swept.MORE
    return Swept.NOTHING


class RecipeParts(Partitioned[Recipe]):
    def __init__(
        self,
        subspace: Any,
        codec: PayloadCodec,
        guard: Guard | None,
        root: bytes,
        name: str,
        current: Current | None,
    ) -> None:
        """As `Recipe`, for a whole queue."""
        shared, keys = SharedKeys(subspace), QueueKeys(subspace)
        aside, check = Aside(keys.prefix, keys.line), guard if current is None else current.guard

        def make(number: int) -> Recipe:
            of_part = QueueKeys(Subspace((), prefix_of(subspace, number)))
            return Recipe(of_part, codec, check, root, name, number, current, shared, aside)

        super().__init__(current, make)
        self.aside, self.guard = self.zero.aside, self.zero.guard
        self.keys, self.name, self.registered = self.zero.keys, self.zero.name, self.zero.registered
        self.shared = shared
        self._turns: Turns | None = None
        self._puts: Iterator[int] | None = None
        self.wide = WideRecipe(
            self.zero, shared, self.holding, count().__next__, lambda tr: runtime_of(tr).now_us()
        )

    @property
    def doorbell(self) -> bytes:
        return self.zero.doorbell if self.plan is None else self.wide.doorbell

    def _open_one(self, plan: Plan | None, random: bytes) -> Recipe:
        """The open partition whose turn it is to get items. The first is a random one: many processes may
        enqueue one item each, and all of them would use partition 0.
        """
        if plan is None:
            return self.zero
        if self._puts is None:
            self._puts = count(int.from_bytes(random))
        return self.part(next(self._puts) % plan.count)

    @contextmanager
    def going_by_plan(self, tr: Transaction) -> Iterator[Plan | None]:
        """A block that goes by the present plan. At its end, `tr` conflicts if another thread has learnt a
        newer one: the guard of a partition that was chosen in the block then goes by that.
        """
        plan = self.plan
        try:
            yield plan
        except PartitionGone:
            raise conflict_in(tr) from None
        if self.plan is not plan:
            raise conflict_in(tr)

    def append(self, tr: Transaction, payloads: Sequence[bytes], random: bytes) -> None:
        """Add items at the end of one partition, in order."""
        current = self.current
        if current is not None and current.plan is not None:
            with self.going_by_plan(tr) as plan:
                self._open_one(plan, random).append(tr, payloads, random)
            return
        self.zero.append(tr, payloads, random)
        if current is not None and current.plan is not None:  # as in going_by_plan, with fewer calls
            raise conflict_in(tr)

    def prepend(self, tr: Transaction, payloads: Sequence[bytes], random: bytes) -> None:
        """Add items before the first one of a partition, in order."""
        with self.going_by_plan(tr) as plan:
            self._open_one(plan, random).prepend(tr, payloads, random)

    def take(self, tr: Transaction, count: int, now_us: int) -> Taken:
        """Remove the first items of one partition, up to `count`, for the transaction of a caller.

        Conflicts: other takers of these items. Without partitions, if it finds fewer than `count`, an
        enqueue; with partitions, if it finds none.
        """
        with self.going_by_plan(tr) as plan:
            if plan is None:
                return self.zero.take(tr, count, now_us)
            taken = self._take_in_turn(tr, plan, count, now_us)
            return taken if taken.values else self.wide.taker().take(tr, count, b"", now_us)

    def _take_in_turn(self, tr: Transaction, plan: Plan, count: int, now_us: int) -> Taken:
        """Take from one partition; from none if it is the turn of all."""
        self._turns = self._turns or Turns(now_us)
        now = runtime_of(tr).monotonic()
        number = self._turns.next(range(plan.count), plan.count, visited(plan), now)
        if number == plan.high:
            return Taken()
        taken = self.part(number).taker.take(tr, count, b"", now_us, is_last=False)
        if not taken.values:
            self._turns.found_nothing(number, now)
        return taken

    def first(self, tr: Any, count: int) -> list[Any]:
        """The first values of the partitions, one after the other, up to `count`."""
        values: list[Any] = []
        with self.going_by_plan(tr):
            for part in self._occupied(tr):
                if len(values) < count:
                    values += part.first(tr, count - len(values))
        return values

    def any(self, tr: Transaction) -> bool:
        """True if there is an item. Reads serialisably."""
        with self.going_by_plan(tr):
            return any(part.any(tr) for part in self._occupied(tr))

    def _occupied(self, tr: Any) -> Sequence[Recipe]:
        """The partitions that may have items: those with a flag. Reads the flags as `tr` reads."""
        check = self.guard(tr)
        if self.plan is None:
            return [self.zero]
        flags = tr.get_range(self.shared.flags.start, self.shared.flags.stop).to_list()
        check()
        return [self.part(self.shared.flagged(flag.key)) for flag in flags]

    def page(self, tr: Transaction, limit: int, after: bytes | None) -> Page[Any]:
        """The values behind `after`, of the first partition that has some; none if that of `after` has gone,
        since it was the last one. Reads by snapshot.
        """
        with self.going_by_plan(tr) as plan:
            return self.zero.page(tr, limit, after) if plan is None else self._page(tr, limit, after)

    def _page(self, tr: Transaction, limit: int, after: bytes | None) -> Page[Any]:
        parts = self.holding()
        number, place = (0, None) if after is None else _place_in(after)
        for at in range(number, len(parts)):
            found = parts[at].page(tr, limit, place if at == number else None)
            found.next = self._next_page(at, found.next, len(parts))
            if found:
                return found
        self.guard(tr)()  # the partition of `after` may be one of a newer plan
        return Page()

    def _next_page(self, number: int, following: str | None, count: int) -> str | None:
        if following is not None:
            return place_text(_PLACE + bytes((number,))) + following
        return place_text(_PLACE + bytes((number + 1,))) if number + 1 < count else None

    def size(self, tr: Transaction) -> int:
        """The number of items. Reads the counters by snapshot. Conflicts: none."""
        return sum(self.sizes(tr))

    def sizes(self, tr: Transaction) -> list[int]:
        """The number of items of each partition. Reads the counters by snapshot."""
        check = self.guard(tr)
        asked = [tr.snapshot.get(part.keys.size) for part in self.holding()]
        check()
        return [size_of(counter.value) for counter in asked]

    def clear(self, tr: Transaction) -> None:
        """Remove every item, and those that were delivered to requests."""
        with self.going_by_plan(tr) as plan:
            for part in self.holding():
                part.clear(tr)
            if plan is not None:
                self.wide.line.results.clear_all(tr)

    def holding_source(self) -> Recipe | WideRecipe:
        """The source of a `Holder`."""
        return self.zero if self.plan is None else self.wide

    def require_none_passed(self, tr: Transaction) -> None:
        for part in self.holding():
            part.require_none_passed(tr)

    def has_passed(self) -> bool:
        return any(part.passed for part in self.holding())


def visited(plan: Plan) -> int:
    """The number of places that takes visit in turn, beside the open partitions: each partition, as closed
    ones may have items, too; and then all together, as items for dead requests lie ready in their line. The
    open partitions may never become empty.
    """
    return plan.high + 1


def _place_in(after: bytes) -> tuple[int, bytes | None]:
    """The partition of a place, and the place in it; None for its start. Raises: InvalidArgument.

    A page that was read before the queue had partitions ends in partition 0.
    """
    if not after.startswith(_PLACE):
        return 0, after
    if after == _PLACE:
        raise no_place(place_text(after))
    return after[1], after[2:] or None


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
    new = parts.wide.lowered(tr, new, lambda number: _is_unused(tr, parts.part(number)))
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


def _is_unused(tr: Transaction, part: Recipe) -> bool:
    """True without items, in place or on the way to a request, and live requests."""
    return is_unused(tr, part.line, runtime_of(tr).now_us(), part.keys.items, part.keys.pieces)


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
