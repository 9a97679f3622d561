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
from fdbqueue.line.shares import Offer, within
from fdbqueue.line.staging import DEADLINE_US, Outcome
from fdbqueue.line.take import Taker
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
        self._taker = Taker(recipe.line, (recipe.guard,), self._keep)

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
        return list(self._taker.take(tr, self._ticket.count, b"", self._runtime.now_us()).values)

    def _keep(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Lay the offers ready for this holder, as the line does for a request. Returns their values."""
        kept, values = self._recipe.hold_back(tr, within(limits.SERVE_BYTES_MAX, offers))
        if kept:
            notice = Notice(self._runtime.now_us() + DEADLINE_US, crowd=1)
            deliveries = self._recipe.deliver(tr, kept, params)
            self._recipe.line.results.leave(tr, self._ticket, deliveries, notice)
        return values

    def _look(self, shown: int) -> Look:
        return Look(self._runtime.now_us(), Reason.NOTICE, wanted=shown)

    def _watch_if_empty(self, tr: Transaction) -> Future | None:
        return None if self._recipe.any(tr) else tr.watch(self._recipe.doorbell)
