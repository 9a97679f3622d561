"""The services of one process for one recipe queue of one database: combined calls, and takes in line.

RecipeParts: the items of a queue in all its partitions; without partitions, in the queue itself. It has the
methods of one partition (items.py), so a handle and its services need not know how many there are. Items have
no task keys, so a change of the number of partitions ends at once.

`Holder`: items that leave a queue only after they were shown, for a reader that may crash in between.

A line written to a pipe cannot be taken back. If its transaction failed afterwards, the retry would write the
line again, and with two readers that would happen often. So a take consists of two transactions. The first
lays items ready, as the waiting line does for a request (line/staging.py): no other taker sees them. The
second removes the items that were shown, and returns the others to their places. If the holder dies in
between, its items come back after limits.REQUEST_DEADLINE_S. A crash may show an item twice; it loses none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, Protocol

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_event, checked_timeout, checked_whole
from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.database import Database, Service, conflict_in, run, runtime_of
from fdbqueue.core.line.decision import Look, Notice, Offer, Reason, Source, Swept, Ticket, within
from fdbqueue.core.line.staging import Line, Outcome, Results, Taken, request_lasts_us
from fdbqueue.core.line.taking import Taker, Takes
from fdbqueue.core.line.wide import (
    WIDE,
    Homes,
    Partitioned,
    Process,
    TakesOfParts,
    Turns,
    Wide,
    grouped,
    is_unused,
    partition_of,
)
from fdbqueue.core.once import run_once, writes
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
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Future, Range, Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.queues.recipe.items import COUNTER, QueueKeys, Recipe, size_of

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
    @property
    def held_max(self) -> int:
        return limits.SERVE_MAX

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

    def holding_source(self) -> "HoldingSource":
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


class QueueCalls(Service):
    """Calls that have their effect once (core/once.py); those of several threads combine."""

    def __init__(self, database: Database, recipe: RecipeParts, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self.recipe = recipe
        """The items, by the plan of this database."""
        self._homes = Homes(database, root)
        self._process = b""
        """The name of this process among the homes, made when it is needed."""
        self._appends = writes(database, root, self._append, is_plain=True)
        self._takes = TakesOfParts[Process](database.runtime, recipe, self._new_takes)
        self._all = Process()
        self._narrow = self._takes.of(self._all, 0)

    def append(self, payloads: Sequence[bytes]) -> None:
        self._appends.call(payloads, len(payloads), sum(map(len, payloads)))

    def take(
        self, count: int, timeout_s: float = 0, stop: Stop | None = None, overtake: int = 0
    ) -> Sequence[Any]:
        """Take up to `count` items. Wait up to `timeout_s` for the first; zero does not wait.

        Raises: WaitStopped as soon as `stop` is set, DatabaseClosed as soon as the database closes; the error
        of an item that was passed over, if there is no other.
        """
        until = self._runtime.monotonic() + timeout_s if timeout_s else 0.0
        current = self.recipe.current
        while True:
            plan = None if current is None else current.plan
            found: Sequence[Any] = ()
            if plan is not None:
                found = self._first(plan, count, stop, overtake)
            elif not timeout_s:
                found = self._narrow.take(count, stop, overtake)
            if timeout_s and not found:
                left_s = max(0.0, until - self._runtime.monotonic())
                takes = self._takes.of(self._all, 0 if plan is None else WIDE)
                found = takes.wait(left_s, count, stop, overtake)
            if found or (plan is None) == (self.recipe.plan is None):
                break
        if not found and self.recipe.has_passed():
            run(self._database, self.recipe.require_none_passed)
        return found

    def _first(self, plan: Plan, count: int, stop: Stop | None, overtake: int) -> Sequence[Any]:
        """Take from the home, and then from all partitions."""
        self._process = self._process or self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        home = self._homes.next(plan.count, visited(plan), self._process)
        for number in (home, WIDE) if home < plan.high else (WIDE,):
            with suppress(PartitionGone):  # since its home was chosen
                if found := self._takes.of(self._all, number).take(count, stop, overtake):
                    return found
                self._homes.found_nothing(number)
        return ()

    def _new_takes(self, _: Process, number: int, has_ended: Callable[[], bool]) -> Takes:
        wide, part = self.recipe.wide, self.recipe.part(max(0, number))
        line, taker = (wide.line, wide.taker()) if number == WIDE else (part.line, part.taker)
        is_plain = self.recipe.zero.codec.is_plain
        return Takes(
            self._database, self._root, line, taker.take_in_turn, is_plain=is_plain, has_ended=has_ended
        )

    def _append(self, tr: Transaction, items: list[bytes], random: bytes) -> Sequence[bytes]:
        self.recipe.append(tr, items, random)
        return items


class SimpleCalls(Service):
    """The recipe of FoundationDB's documentation: plain takes, retried after a conflict. For comparison."""

    def __init__(self, database: Database, recipe: RecipeParts, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self.recipe = recipe
        self._root = root

    def append(self, payloads: Sequence[bytes]) -> None:
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run_once(self._database, self._root, lambda tr: self.recipe.append(tr, payloads, random))

    def take(self, count: int, timeout_s: float = 0, stop: Stop | None = None) -> Sequence[Any]:
        """Take up to `count` items. Each process that waits wakes at each change, and all of them race."""
        until = self._runtime.monotonic() + timeout_s
        with self._database.waiter(stop) as waiter:
            while True:
                look = self._take(count, watch=timeout_s > 0)
                if look.values:
                    return look.values
                left = until - self._runtime.monotonic()
                if look.watch is not None:
                    waiter.sleep([look.watch], min(left, limits.LOOK_EVERY_S))
                if left <= 0:
                    return ()

    def _take(self, count: int, watch: bool) -> "SimpleLook":
        def body(tr: Transaction) -> SimpleLook:
            taken = self.recipe.take(tr, count, self._runtime.now_us())
            # Only without a write: beside a write, a watch is a read that conflicts.
            unseen = watch and not taken.wrote
            return SimpleLook(taken.values, tr.watch(self.recipe.doorbell) if unseen else None)

        return run_once(self._database, self._root, body, wrote=lambda look: bool(look.values))


@dataclass(frozen=True)
class SimpleLook:
    """The items of a simple take, or the watch that fires when it is time to take again."""

    values: Sequence[Any]
    watch: Future | None
    """None also for a take without an item that has set a damaged one aside: take again at once."""


class HoldingSource(Source, Protocol):
    line: Line

    def hold_back(self, tr: Transaction, offers: Sequence[Offer]) -> tuple[list[Offer], list[Any]]:
        """As Recipe.hold_back."""


class Holdable(Protocol):
    """A queue of items that a `Holder` takes from."""

    @property
    def held_max(self) -> int:
        """Number of items that are held at a time."""

    def holding_source(self) -> HoldingSource: ...
    def going_by_plan(self, tr: Transaction) -> AbstractContextManager[Any]: ...


Held = tuple[HoldingSource, list[Any]]
"""Values that are held, and the source in whose line they lie."""


class Holder:
    """The first items of one queue, a few at a time: `hold`, show them, `settle`."""

    def __init__(self, database: Database, root: RootKeys, recipe: Holdable) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._recipe = recipe
        self._ticket = Ticket(b"", b"", 0)
        self._source = recipe.holding_source()

    def hold(self, count: int) -> list[Any]:
        """Hold the first items until `settle`: at most `count` and limits.SERVE_MAX. Return their values."""
        # Made outside the body: a retry after an unknown result finds the items under the same name.
        rid = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._ticket = Ticket(b"", rid, min(checked_count("count", count), self._recipe.held_max))
        self._source, values = run_once(
            self._database, self._root, self._hold, wrote=lambda held: bool(held[1])
        )
        return values

    def settle(self, shown: int) -> bool:
        """Remove the first `shown` of the held items, and return the others to their places.

        False if the deadline has passed and all of them were returned before.
        """
        checked_whole("shown", shown, 0)
        turn = run_once(
            self._database,
            self._root,
            lambda tr: self._source.line.look(
                tr, self._ticket, Look(self._runtime.now_us(), Reason.NOTICE, wanted=shown)
            ),
            wrote=lambda turn: turn.wrote,
        )
        return turn.outcome is not Outcome.GONE

    def wait(self, timeout_s: float, *, stop: Stop | None = None) -> None:
        """Wait until an item may be available, or `timeout_s` has passed. It may return earlier."""
        checked_event("stop", stop)
        patience_s = min(checked_timeout(timeout_s, "timeout_s"), limits.LOOK_EVERY_S)
        with self._database.waiter(stop) as waiter:
            watches = run(self._database, self._watches_if_empty)
            if watches:
                waiter.sleep(watches, patience_s)

    def _hold(self, tr: Transaction) -> Held:
        with self._recipe.going_by_plan(tr):
            source = self._recipe.holding_source()  # of this attempt
            taker = Taker(source.line, (source.guard,), partial(self._keep, source))
            found = taker.take(tr, self._ticket.count, b"", self._runtime.now_us())
        return source, list(found.values)

    def _keep(
        self, source: HoldingSource, tr: Transaction, offers: Sequence[Offer], params: bytes
    ) -> list[Any]:
        """Lay the offers ready for this holder, as the line does for a request. Returns their values."""
        found = zip(*source.hold_back(tr, within(limits.SERVE_BYTES_MAX, offers)), strict=True)
        held = sorted(found, key=lambda one: one[0].id)  # results are read in the order of their keys
        if held:
            notice = Notice(self._runtime.now_us() + request_lasts_us(), crowd=1)
            deliveries = source.deliver(tr, [offer for offer, _ in held], params)
            deliveries.sort(key=attrgetter("id"))
            source.line.results.leave(tr, self._ticket, deliveries, notice)
        return [value for _, value in held]

    def _watches_if_empty(self, tr: Transaction) -> list[Future]:
        source = self._recipe.holding_source()
        # As a look of the line: it clears the flags of empty partitions, and an item that sets one rings.
        check, found = source.guard(tr), source.available(tr, 1, self._runtime.now_us())
        check()
        is_empty = next(iter(found), None) is None
        return [tr.watch(key) for key in source.doorbells()] if is_empty else []
