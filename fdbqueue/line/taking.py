"""The taking half of what one process keeps for one queue: combined calls, and a place in the line.

Works for any queue that has a line: a recipe queue hands out items, a task queue leases.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue import limits
from fdbqueue.calls.combine import Call, CallState, Combiner
from fdbqueue.calls.once import LostConflict, run_once
from fdbqueue.database import Database
from fdbqueue.line.staging import Line, Outcome
from fdbqueue.line.take import Taken
from fdbqueue.line.waiting import Memory, Nudge, Place
from fdbqueue.root_keys import RootKeys
from fdbqueue.runtime import Stop
from fdbqueue.seam import Transaction
from fdbqueue.waiters import Waiter

_wrote, _count = attrgetter("wrote"), attrgetter("count")

TakeInTurn = Callable[[Transaction, int, bytes, int], Taken]
"""Take so many for a request with such params at such a time, of which nobody in the line has a share."""


class Takes:
    """Takes given a database: each has its effect once (receipts), those of several threads combine."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        line: Line,
        take_in_turn: TakeInTurn,
        new_params: Callable[[], bytes] = bytes,
        give_back: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        """`new_params` makes what the line's source must know of a request; anew for each of them.
        `give_back` undoes a take; None if a take is final.
        """
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._line = line
        self._take_in_turn = take_in_turn
        self._new_params = new_params
        self._give_back = give_back
        self._memory = Memory(database)
        self._place: Place | None = None
        self._nudge = Nudge()
        self._takes = Combiner(database.runtime, self._take_for)
        self._waits = Combiner(database.runtime, self._wait_for, self._nudge.give)

    def take(self, count: int, stop: Stop | None = None) -> Sequence[Any]:
        """Up to `count` that are there now. Raises WaitStopped if `stop` is set, DatabaseClosed."""
        with self._database.waiter(stop) as waiter:
            return self._kept(self._takes.call(None, count), waiter)

    def wait(self, timeout_s: float, count: int = 1, stop: Stop | None = None) -> Sequence[Any]:
        """Up to `count`, waiting for the first; empty only if at the end there is none.

        Raises WaitStopped as soon as `stop` is set, DatabaseClosed as soon as the database is closing. Then
        the call has left the line, and its results are back in their places.
        """
        until = self._runtime.monotonic() + timeout_s
        with self._database.waiter(stop) as waiter:
            call = self._waits.call(None, count, until=until, waiter=waiter)
            if call.state is not CallState.SETTLED:
                waiter.check()
                call = self._takes.call(None, count)
            return self._kept(call, waiter)

    def _kept(self, call: Call, waiter: Waiter) -> Sequence[Any]:
        """The answer; but if the wait ended while the take committed, the take is undone, where it can be."""
        answer: Sequence[Any] = call.answer
        if not waiter.is_ready() or (answer and self._give_back is None):
            return answer
        if answer and self._give_back is not None:
            self._give_back(answer)
        waiter.check()
        return ()

    def end_waits(self) -> None:
        """Those who wait now return, with what there is, as if their time were over."""
        self._waits.end_waits()
        self._nudge.give()

    # The work of a leader, one round each.

    def _take_for(self, crew: Combiner, leader: Call) -> None:
        if not self._without_a_place(crew, to_all=True):
            self._new_place(crew, self._claim(crew)).stand(crew, leader)

    def _wait_for(self, crew: Combiner, leader: Call) -> bool:
        """Whether a request is left in the line: if nobody stood there any more, its item would lie."""
        if self._place is None:
            if self._without_a_place(crew, to_all=False):
                return False
            calls = self._claim(crew)
            if not calls:  # all have been stopped
                return False
            self._place = self._new_place(crew, calls)
        if self._place.stand(crew, leader) is Outcome.WAIT:
            return True
        self._place = None
        return False

    def _without_a_place(self, crew: Combiner, to_all: bool) -> bool:
        """Take for all callers in one transaction, without a request; False if they have to register."""
        for _ in range(0 if self._memory.is_crowded() else limits.PLAIN_ATTEMPTS_MAX):
            taken = self._attempt(crew, to_all)
            if taken is not None:
                return to_all or bool(taken.values)
        return False

    def _attempt(self, crew: Combiner, to_all: bool) -> Taken | None:
        """None if others won the race, or it could not be told what there is: worth another attempt."""
        params = self._new_params()
        try:
            taken = run_once(
                self._database,
                self._root,
                partial(self._take, crew=crew, params=params),
                wrote=_wrote,
                keep=partial(_answer, crew, to_all=to_all),
                yield_to_conflict=True,
            )
        except LostConflict:
            crew.release()
            return None
        if taken.turn is not None:
            self._memory.note(taken.turn)
        return None if taken.is_open else taken

    def _take(self, tr: Transaction, crew: Combiner, params: bytes) -> Taken:
        # Claimed before anything is read: what is not there now may be told only to these.
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        if not calls:  # all have been stopped
            return Taken()
        return self._take_in_turn(tr, sum(map(_count, calls)), params, self._runtime.now_us())

    def _claim(self, crew: Combiner) -> Sequence[Call]:
        return crew.claim(limits.SERVE_MAX, limits.BATCH_BYTES_MAX)

    def _new_place(self, crew: Combiner, calls: Sequence[Call]) -> Place:
        count = min(sum(map(_count, calls)), limits.SERVE_MAX)
        self._database.counters.requests += 1
        nudge = self._nudge if crew is self._waits else Nudge()  # one wakes one sleeper
        return Place(self._database, self._root, self._line, count, self._new_params(), nudge, self._memory)


def _answer(crew: Combiner, taken: Taken, to_all: bool) -> None:
    if taken.is_open:
        crew.release()
    else:
        crew.deal(taken.values, to_all=to_all and not taken.cut_short)
