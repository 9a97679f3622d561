"""Items that leave a queue once they have been shown, for a reader that can break in between.

A line written to a pipe cannot be taken back, and a transaction that fails after the line was written would
write it twice: two readers at one queue would meet that all the time. So a take is made of two transactions.
The first moves items to where the waiting line keeps what it has handed to somebody (line/staging.py);
nobody else gets them. The second removes those that were shown, and puts the rest back in their old places.
If the holder dies in between, they come back on their own after limits.REQUEST_DEADLINE_S: a crash may show
an item twice, and never loses one.
"""

from collections.abc import Sequence
from typing import Any

from fdbqueue import limits
from fdbqueue.arguments import checked_count, checked_event, checked_timeout, checked_whole
from fdbqueue.calls.once import run_once
from fdbqueue.database import Database, run
from fdbqueue.line.decision import Look, Reason
from fdbqueue.line.keys import Notice, Ticket
from fdbqueue.line.shares import Offer, portion_of, within
from fdbqueue.line.staging import DEADLINE_US, Outcome
from fdbqueue.recipe.items import Recipe
from fdbqueue.root_keys import RootKeys
from fdbqueue.runtime import Stop
from fdbqueue.seam import Future, Transaction


class Holder:
    """The first items of one queue, a few at a time: `hold`, show them, `settle`."""

    def __init__(self, database: Database, root: RootKeys, recipe: Recipe) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._recipe = recipe
        self._ticket = Ticket(b"", b"", 0)

    def hold(self, count: int) -> list[Any]:
        """The first values, up to `count` and limits.SERVE_MAX, kept from everybody else until `settle`."""
        # Made outside the body: a retry after an unknown result holds under the same name.
        rid = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._ticket = Ticket(b"", rid, min(checked_count("count", count), limits.SERVE_MAX))
        return run_once(self._database, self._root, self._hold, wrote=bool)

    def settle(self, shown: int) -> bool:
        """Remove the first `shown` of the held items, put the others back.

        False if it is too late: the holder took so long that all of them have gone back already. Raises
        InvalidArgument.
        """
        checked_whole("shown", shown, 0)
        turn = run_once(
            self._database,
            self._root,
            lambda tr: self._recipe.line.look(tr, self._ticket, self._look(shown)),
            wrote=lambda turn: turn.wrote,
        )
        return turn.outcome is not Outcome.GONE

    def wait(self, timeout_s: float, *, stop: Stop | None = None) -> None:
        """Until there may be something to hold, or `timeout_s` has passed; now and then for nothing.

        Raises WaitStopped as soon as `stop` is set, DatabaseClosed as soon as the database is closing.
        """
        checked_event("stop", stop)
        patience_s = min(checked_timeout(timeout_s, "timeout_s"), limits.LOOK_EVERY_S)
        with self._database.waiter(stop) as waiter:
            watch = run(self._database, self._watch_if_empty)
            if watch is not None:
                waiter.sleep(watch, patience_s)

    def _hold(self, tr: Transaction) -> list[Any]:
        line, now_us = self._recipe.line, self._runtime.now_us()
        due = line.results.ask_due(tr)
        offers = self._first(tr)
        overdue = [] if offers else line.results.overdue(due, now_us)
        if overdue:
            line.results.return_overdue(tr, overdue)
            offers = self._first(tr)
        found = offers
        offers, values = self._recipe.hold_back(tr, found)
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if offers or not found:
                break
            found = self._first(tr)
            offers, values = self._recipe.hold_back(tr, found)
        if not offers:
            self._recipe.require_none_passed(tr)
            return []
        deliveries = self._recipe.deliver(tr, offers, b"")
        line.results.leave(tr, self._ticket, deliveries, Notice(now_us + DEADLINE_US, crowd=1))
        return values

    def _first(self, tr: Transaction) -> Sequence[Offer]:
        check = self._recipe.guard(tr)
        found = within(limits.SERVE_BYTES_MAX, self._recipe.available(tr, self._ticket.count))
        check()
        return portion_of(found, len(found))

    def _look(self, shown: int) -> Look:
        return Look(self._runtime.now_us(), Reason.NOTICE, wanted=shown)

    def _watch_if_empty(self, tr: Transaction) -> Future | None:
        return None if self._recipe.any(tr) else tr.watch(self._recipe.doorbell)
