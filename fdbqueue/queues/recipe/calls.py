"""The services of one process for one recipe queue of one database: combined calls, and takes in line.

`Holder`: items that leave a queue only after they were shown, for a reader that may crash in between.

A line written to a pipe cannot be taken back. If its transaction failed afterwards, the retry would write the
line again, and with two readers that would happen often. So a take consists of two transactions. The first
lays items ready, as the waiting line does for a request (line/results.py): no other taker sees them. The
second removes the items that were shown, and returns the others to their places. If the holder dies in
between, its items come back after limits.REQUEST_DEADLINE_S. A crash may show an item twice; it loses none.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_event, checked_timeout, checked_whole
from fdbqueue.core.database import Database, Service, run
from fdbqueue.core.line.decision import Look, Notice, Offer, Reason, Ticket, within
from fdbqueue.core.line.staging import DEADLINE_US, Outcome
from fdbqueue.core.line.taking import Taker, Takes
from fdbqueue.core.line.wide import WIDE, Homes, Process, TakesOfParts
from fdbqueue.core.once import run_once, writes
from fdbqueue.core.partitions import PartitionGone, Plan
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.queues.recipe.items import Recipe
from fdbqueue.queues.recipe.parts import RecipeParts, WideRecipe, visited


class QueueCalls(Service):
    """Calls that have their effect once (calls/once.py); those of several threads combine."""

    def __init__(self, database: Database, recipe: RecipeParts, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self.recipe = recipe
        """The items, by the plan of this database."""
        self._homes = Homes(database, root)
        self._process = b""
        """The name of this process among the homes, made when it is needed."""
        self._appends = writes(database, root, self._append)
        self._takes = TakesOfParts[Process](database.runtime, recipe, self._new_takes)
        self._all = Process()
        self._narrow = self._takes.of(self._all, 0)

    def append(self, payloads: Sequence[bytes]) -> None:
        self._appends.call(payloads, len(payloads), sum(map(len, payloads)))

    def take(self, count: int, timeout_s: float = 0, stop: Stop | None = None) -> Sequence[Any]:
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
                found = self._first(plan, count, stop)
            elif not timeout_s:
                found = self._narrow.take(count, stop)
            if timeout_s and not found:
                left_s = max(0.0, until - self._runtime.monotonic())
                found = self._takes.of(self._all, 0 if plan is None else WIDE).wait(left_s, count, stop)
            if found or (plan is None) == (self.recipe.plan is None):
                break
        if not found and self.recipe.has_passed():
            run(self._database, self.recipe.require_none_passed)
        return found

    def _first(self, plan: Plan, count: int, stop: Stop | None) -> Sequence[Any]:
        """Take from the home, and then from all partitions."""
        self._process = self._process or self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        home = self._homes.next(plan.count, visited(plan), self._process)
        for number in (home, WIDE) if home < plan.high else (WIDE,):
            with suppress(PartitionGone):  # since its home was chosen
                if found := self._takes.of(self._all, number).take(count, stop):
                    return found
                self._homes.found_nothing(number)
        return ()

    def _new_takes(self, _: Process, number: int, has_ended: Callable[[], bool]) -> Takes:
        wide, part = self.recipe.wide, self.recipe.part(max(0, number))
        line, taker = (wide.line, wide.taker()) if number == WIDE else (part.line, part.taker)
        return Takes(self._database, self._root, line, taker.take_in_turn, has_ended=has_ended)

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


HoldingSource = Recipe | WideRecipe
Held = tuple[HoldingSource, list[Any]]
"""Values that are held, and the source in whose line they lie."""


class Holder:
    """The first items of one queue, a few at a time: `hold`, show them, `settle`."""

    def __init__(self, database: Database, root: RootKeys, recipe: RecipeParts) -> None:
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
        self._ticket = Ticket(b"", rid, min(checked_count("count", count), limits.SERVE_MAX))
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
            notice = Notice(self._runtime.now_us() + DEADLINE_US, crowd=1)
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
