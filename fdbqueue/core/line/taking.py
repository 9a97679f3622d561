"""Takes of one process on one queue: combined calls, and one place in the line for all of them.

They work for every queue with a line: a recipe queue hands out items, a task queue hands out leases.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.binding import knows_processes, name_of_process
from fdbqueue.core.calls.combine import Call, CallState, Combiner
from fdbqueue.core.calls.once import LostConflict, run_once
from fdbqueue.core.database import Database
from fdbqueue.core.line.staging import Line, Outcome
from fdbqueue.core.line.take import Taken
from fdbqueue.core.line.waiting import Memory, Nudge, Place
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Transaction
from fdbqueue.core.waiters import Waiter

_wrote, _count, _may_be_lost = attrgetter("wrote"), attrgetter("count"), attrgetter("may_be_lost")

TakeInTurn = Callable[[Transaction, int, bytes, int], Taken]
"""Given a transaction, a count, params and a time: take items that belong to no waiting request."""


class Takes:
    """Takes given a database: each has its effect once (calls/once.py). Those of several threads combine."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        line: Line,
        take_in_turn: TakeInTurn,
        new_params: Callable[[], bytes] | None = None,
        give_back: Callable[[Sequence[Any]], None] | None = None,
        *,
        is_named: bool = False,
        lost: Callable[[], None] | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """`new_params` makes the params of a new request, which the source of the line reads; in a directory,
        they begin with the name of this process, if it alone has the request. `give_back` undoes a take; None
        if a take is final. `is_named`: the takes of a session that another process may go
        on with after a power cut, so each item that it gets is durable. `lost` is called after another taker
        has won the race for an item. `has_ended`: true from a moment before `end_waits`; a call that begins
        to wait later than that does not wait.
        """
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._line = line
        if not knows_processes(database.engine):
            line.life.watch()
        self._take_in_turn = take_in_turn
        self._new_params = new_params or partial(name_of_process, database.engine)
        self._give_back = give_back
        self._is_named = is_named
        self._may_be_lost = _may_be_lost_of_name if is_named else _may_be_lost
        self._lost = lost
        self._memory = Memory(database)
        self._place: Place | None = None
        self._nudge = Nudge()
        self._takes = Combiner(database.runtime, self._take_for)
        self._waits = Combiner(database.runtime, self._wait_for, self._nudge.give, has_ended)

    def take(self, count: int, stop: Stop | None = None) -> Sequence[Any]:
        with Waiter(self._database.waiters, (stop,)) as waiter:  # as Database.waiter, with fewer calls
            call = self._takes.call(None, count)
            return call.answer if waiter.reason is None else self._kept(call, waiter)

    def wait(self, timeout_s: float, count: int = 1, stop: Stop | None = None) -> Sequence[Any]:
        """Take up to `count` items, and wait for the first. Empty only if there is none at the end.

        Raises: WaitStopped as soon as `stop` is set, DatabaseClosed as soon as the database closes. Then the
        call has left the line, and its results are back in their places.
        """
        until = self._runtime.monotonic() + timeout_s
        with self._database.waiter(stop) as waiter:
            call = self._waits.call(None, count, until=until, waiter=waiter)
            if call.state is not CallState.DONE:
                waiter.check()
                call = self._takes.call(None, count)
            return self._kept(call, waiter)

    def _kept(self, call: Call, waiter: Waiter) -> Sequence[Any]:
        """The answer. If the wait was ended while the take committed, the take is undone where it can be."""
        answer: Sequence[Any] = call.answer
        if waiter.reason is None or (answer and self._give_back is None):
            return answer
        if answer and self._give_back is not None:
            self._give_back(answer)
        waiter.check()
        return ()

    def end_waits(self) -> None:
        """End the waits of all callers, as if their time were over: each returns its items so far."""
        self._waits.end_waits()
        self._nudge.give()

    # The work of a leader for one batch.

    def _take_for(self, crew: Combiner, leader: Call) -> None:
        if not self._without_a_place(crew, to_all=True):
            self._new_place(crew, self._claim(crew)).stand(crew, leader)

    def _wait_for(self, crew: Combiner, leader: Call) -> bool:
        """True if a request stays in the line: another call has to lead, or its item would lie unused."""
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
        """Take for all callers in one transaction, without a request. False if they have to register."""
        is_crowded = self._runtime.monotonic() < self._memory.crowded_until
        for _ in range(0 if is_crowded else limits.PLAIN_ATTEMPTS_MAX):
            try:
                taken = run_once(
                    self._database,
                    self._root,
                    partial(self._take, crew=crew, params=self._new_params()),
                    wrote=_wrote,
                    may_be_lost=self._may_be_lost,
                    keep=partial(_answer, crew, to_all=to_all),
                    unsure=crew.hold,
                    doubt=crew.fail,
                    yield_to_conflict=True,
                )
            except LostConflict:  # another taker won the race
                crew.release()
                if self._lost is not None:
                    self._lost()
                continue
            if taken.turn is not None:
                self._memory.note(taken.turn)
            if taken.values or not taken.is_open:
                return to_all or bool(taken.values)
        return False

    def _take(self, tr: Transaction, crew: Combiner, params: bytes) -> Taken:
        # Claimed before the first read: only these callers may be told that there is nothing.
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        if not calls:  # all have been stopped
            return Taken()
        return self._take_in_turn(tr, sum(map(_count, calls)), params, round(self._runtime.now() * 1_000_000))

    def _claim(self, crew: Combiner) -> Sequence[Call]:
        return crew.claim(limits.SERVE_MAX, limits.BATCH_BYTES_MAX)

    def _new_place(self, crew: Combiner, calls: Sequence[Call]) -> Place:
        count = min(sum(map(_count, calls)), limits.SERVE_MAX)
        self._database.counters.requests += 1
        nudge = self._nudge if crew is self._waits else Nudge()  # one wakes one sleeper
        return Place(
            self._database,
            self._root,
            self._line,
            count,
            self._new_params(),
            nudge,
            self._memory,
            self._is_named,
        )


def _may_be_lost_of_name(taken: Taken) -> bool:
    return taken.may_be_lost and not taken.values


def _answer(crew: Combiner, taken: Taken, to_all: bool) -> None:
    if not taken.values and taken.is_open:
        crew.release()
    else:
        crew.deal(taken.values, to_all=to_all and not taken.cut_short)
