"""Items that leave a queue only after they were shown, for a reader that may crash in between.

A line written to a pipe cannot be taken back. If its transaction failed afterwards, the retry would write the
line again, and with two readers that would happen often. So a take consists of two transactions. The first
lays items ready, as the waiting line does for a request (line/results.py): no other taker sees them. The
second removes the items that were shown, and returns the others to their places. If the holder dies in
between, its items come back after limits.REQUEST_DEADLINE_S. A crash may show an item twice; it loses none.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_event, checked_timeout, checked_whole
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database, conflict_in, run
from fdbqueue.core.line.decision import Look, Offer, Reason, within
from fdbqueue.core.line.keys import Notice, Ticket
from fdbqueue.core.line.life import DEADLINE_US
from fdbqueue.core.line.staging import Outcome
from fdbqueue.core.line.take import Taker
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.queues.recipe.items import Recipe
from fdbqueue.queues.recipe.parts import RecipeParts, WideRecipe

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
        plan, source = self._recipe.plan, self._recipe.holding_source()  # of this attempt
        taker = Taker(source.line, (source.guard,), partial(self._keep, source))
        found = taker.take(tr, self._ticket.count, b"", self._runtime.now_us())
        if self._recipe.plan is not plan:  # another thread has met a newer one
            raise conflict_in(tr)
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
