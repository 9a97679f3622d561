"""Takes: how the available items of a queue reach the callers of one process, at once or by the line.

    Taker.take           in a transaction of the caller: the first items, whichever requests they belong to
    Taker.take_in_turn   given a database: the first items that belong to no request in the line
    Place                the request of one process in the line: register, sleep, look, serve
    Takes                combined calls, and one place in the line for all of them

They work for every queue with a line: a recipe queue hands out items, a task queue hands out leases. `Source`
is all that differs. Reads that do not depend on each other are asked for together: a take without contention
costs one round trip, and one more if its items need it.

Each step of a place is a transaction of its own (line/staging.py). The loop around them is here, and is the
only part of the line that waits. One request stands for all callers of a Combiner.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core import line as late
from fdbqueue.core.binding import is_gone, knows_processes, may_be_lost, name_of_process
from fdbqueue.core.calls import Call, CallState, Combiner, Nudge, Waiter
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import TooMuchToSweep
from fdbqueue.core.line.decision import (
    NOTHING,
    Ask,
    Look,
    Offer,
    Otherwise,
    Portion,
    Reason,
    Swept,
    Ticket,
    portion_of,
)
from fdbqueue.core.line.staging import Line, Outcome, Taken, Turn
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.core.once import LostConflict, Short, run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Stop, Waitable
from fdbqueue.core.seam import Future, Range, Transaction, engine_errors, require_ordinary

if TYPE_CHECKING:
    from fdbqueue.core.line.overtaking import Overtaking

HandOut = Callable[[Transaction, Sequence[Offer], bytes], Sequence[Any]]
"""Claims offers for a take that passes params, as a request does. Returns the values that can be read."""


class Taker:
    def __init__(
        self, line: Line, asks: Sequence[Ask], hand_out: HandOut, beside: HandOut | None = None
    ) -> None:
        """The replies to `asks` raise if the caller may not take anything. `beside`: for offers that leave
        earlier ones behind; None if `hand_out` conflicts with a use of its offers alone.
        """
        self._line = line
        self._source = line.source
        self._activity = line.keys.activity
        self._asks = asks
        self._hand_out = hand_out
        self._beside = beside or hand_out

    def take(self, tr: Transaction, count: int, params: bytes, now_us: int, *, is_last: bool = True) -> Taken:
        """Take the first items, up to `count`, for the transaction of a caller.

        `is_last`: without an item, the answer is that there is none; otherwise another source is asked.
        Conflicts: every use of the same items; if it finds nothing, everything that makes an item available.
        Raises: the error of an item that this process cannot read, if there is no other item; TooMuchToSweep
        if that is not known after limits.TIDY_ROUNDS_MAX batches.
        """
        source, results = self._source, self._line.results
        checks = [ask(tr) for ask in self._asks]
        tidy, found, due = (
            source.ask_tidy(tr, now_us),
            source.available(tr, count, now_us),
            results.ask_due(tr),
        )
        for check in checks:
            check()
        tidied = tidy()
        # Tidying has changed the items that were asked for before it.
        portion, has_seen_all = portion_of(source.available(tr, count, now_us) if tidied else found), True
        if tidied and not portion.offers:
            portion, has_seen_all = self._tidied(tr, count, now_us)
        if not portion.offers:
            portion, has_returned_all = self._returned(tr, count, due, now_us)
            has_seen_all = has_seen_all and has_returned_all
        taken = self._take(tr, portion, tidied, count, params, now_us)
        if not taken.values and is_last:
            tr.add_read_conflict_range(source.ready.start, source.ready.stop)
            source.require_none_passed(tr)
            if (taken.cut_short or not has_seen_all) and not source.is_paused(tr):
                raise TooMuchToSweep(name=source.name)
        return taken

    def take_in_turn(
        self, tr: Transaction, count: int, params: bytes, now_us: int, left: int | None = None
    ) -> Taken:
        """Take up to `count` items to which no request in the line is entitled, behind the first `left`.

        `left`: None for a take that is strict, and tidies the line if there are requests.
        Reads: the first items, requests and due times by snapshot; serialisably the keys it changes.
        Conflicts: every use of the same items.
        """
        source, activity = self._source, self._activity
        checks = list(map(call, self._asks, repeat(tr)))
        tidy = source.ask_tidy(tr, now_us) if source.comes_due else None
        found = source.available(tr, (left or 0) + count, now_us)
        first = tr.snapshot.get_range(activity.start, activity.stop, limit=1).to_list()
        for check in checks:
            check()
        tidied = Swept.NOTHING if tidy is None else tidy()
        if tidied:
            found = source.available(tr, (left or 0) + count, now_us)
        is_work = bool(first) and self._line.keys.is_work(first[0].key, now_us)
        if left is not None:
            found = late.overtaking.chosen(tr, self._line, found, left, count, now_us, is_work)
            if found:
                return self._take_behind(tr, portion_of(found), tidied, params)
        portion = portion_of(found)
        if first and (is_work or not portion.offers):
            turn = self._line.pass_by(tr, count, params, now_us)
            may_be_lost = turn.may_be_lost and tidied is not Swept.MORE
            return Taken(turn.answers, bool(turn.answers), turn.wrote or bool(tidied), turn, may_be_lost)
        return self._take(tr, portion, tidied, count, params, now_us)

    def _take_behind(self, tr: Transaction, portion: Portion, tidied: Swept, params: bytes) -> Taken:
        """Take `portion`, and nothing in place of what is unreadable: earlier items may belong to requests.
        They are there, so a caller without an item has no answer yet.
        """
        values = self._beside(tr, portion.offers, params)
        are_leases = self._source.hands_out_leases and len(values) == len(portion.offers)
        return Taken(values, True, True, None, are_leases and tidied is not Swept.MORE)

    def _tidied(self, tr: Transaction, count: int, now_us: int) -> tuple[Portion, bool]:
        """The first items after more items have come due. Expired ones may fill a batch. The second value is
        false if more may be due.
        """
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if not self._source.ask_tidy(tr, now_us)():
                return NOTHING, True
            portion = portion_of(self._source.available(tr, count, now_us))
            if portion.offers:
                return portion, True
        return NOTHING, False

    def _returned(self, tr: Transaction, count: int, due: Range, now_us: int) -> tuple[Portion, bool]:
        """The first items after overdue results have come back. All items of a batch may have gone since. The
        second value is false if more may be overdue.
        """
        results = self._line.results
        for _ in range(limits.TIDY_ROUNDS_MAX):
            overdue = results.overdue(due, now_us)
            if not overdue:
                return NOTHING, True
            results.return_overdue(tr, overdue)
            found, due = self._source.available(tr, count, now_us), results.ask_due(tr)
            portion = portion_of(found)
            if portion.offers:
                return portion, True
        return NOTHING, False

    def _take(
        self, tr: Transaction, portion: Portion, tidied: Swept, count: int, params: bytes, now_us: int
    ) -> Taken:
        """Take `portion`; if it is unreadable, what is behind, while one transaction can set all aside."""
        unreadable_bytes = 0
        wrote = bool(tidied) or bool(portion.offers)
        may_be_lost = self._source.hands_out_leases and tidied is not Swept.MORE
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if not portion.offers:
                break
            values = self._hand_out(tr, portion.offers, params)
            # Without its value, an item could not be read, and was buried.
            may_be_lost = may_be_lost and len(values) == len(portion.offers)
            if values:
                # An expired or unreadable item has the place of another among the first `count`.
                is_dense = len(values) == count or (not tidied and len(values) == len(portion.offers))
                return Taken(values, portion.cut_short or not is_dense, wrote, None, may_be_lost)
            unreadable_bytes += _bytes_of(portion)
            portion = portion_of(self._source.available(tr, count, now_us))
            if unreadable_bytes + _bytes_of(portion) > limits.UNREADABLE_BYTES_MAX:
                break
        return Taken((), bool(portion.offers), wrote)


def _bytes_of(portion: Portion) -> int:
    return sum(offer.size_bytes for offer in portion.offers)


_UNDECIDED = (Outcome.AGAIN, Outcome.WAIT, Outcome.PENDING)
"""Outcomes after which the request is still in the line."""

_PASSING = MAYBE_COMMITTED | {1007, 1009}
"""Errors of watches after which others can be armed: unknown result, read version too old or too new."""


class Place:
    """A request of this process in the line. It may outlive the thread that registered it."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        line: Line,
        count: int,
        params: bytes,
        nudge: Nudge,
        memory: "Memory",
        is_named: bool,
    ) -> None:
        """Register for `count` items, at most limits.SERVE_MAX. The `nudge` ends a sleep when the time of a
        caller has changed. `is_named`: as in `Takes`.
        """
        self._nudge = nudge
        self._memory = memory
        self._is_named = is_named
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._line = line
        began = self._runtime.monotonic()
        self._renew_at = began + self._renews_in_s(is_watched=line.life.is_watching)
        rid = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._ticket = Ticket(self._register(rid, count, params), rid, count, params)
        self._commit_s = self._runtime.monotonic() - began

    def _register(self, rid: bytes, count: int, params: bytes) -> bytes:
        """Register. Return the stamp; empty if the request left the line before the stamp was known."""
        stamps: list[bytes] = []

        def body(tr: Transaction) -> Future:
            self._line.register(tr, rid, count, params, self._runtime.now_us())
            return tr.get_versionstamp()

        def keep(stamp: Future) -> None:
            with suppress(*engine_errors()):  # the stamp of an attempt with an unknown result is lost
                stamps.append(bytes(stamp.wait()))

        try:
            leases = self._line.source.hands_out_leases
            run_once(self._database, self._root, body, may_be_lost=lambda _: leases, keep=keep)
            return stamps[0] if stamps else run(self._database, lambda tr: self._line.find(tr, rid)).stamp
        except BaseException:
            self._abandon(lambda tr: self._line.find(tr, rid))  # an attempt may have committed
            raise

    def stand(self, crew: Combiner, leader: Call) -> Outcome:
        """Stand in the line until calls of `crew` have answers, or none of them waits any more.

        SERVED: the answers are dealt out. LEFT: the request is withdrawn; calls that may not wait have the
        answer that there is nothing. GONE: the request was removed, so register again. WAIT: the leader's
        time is over; the request stays for the other calls.
        """
        try:
            return self._stand(crew, leader)
        except BaseException:
            # Other calls that wait keep this request. Calls that may not wait register a new one.
            if leader.until is None or not crew.anyone_else(leader):
                self._abandon(lambda _: self._ticket)
            raise

    def _stand(self, crew: Combiner, leader: Call) -> Outcome:
        reason = Reason.ARRIVAL
        while True:
            over = leader.until is not None and self._runtime.monotonic() >= leader.until
            if over and crew.anyone_else(leader):
                return Outcome.WAIT
            if leader.stopped:
                self._abandon(lambda _: self._ticket)
                return Outcome.LEFT
            otherwise = self._otherwise(leaves=over or leader.until is None)
            # A request that leaves must know whether an item is available.
            is_renewal = reason is Reason.RENEWAL and otherwise is Otherwise.LEAVE
            turn = self._turn(crew, leader, Reason.SIGNAL if is_renewal else reason, otherwise)
            if turn.outcome not in _UNDECIDED:
                return turn.outcome
            if turn.outcome is not Outcome.AGAIN:
                reason = self._sleep(turn, leader, otherwise)
            elif reason is Reason.NOTICE:
                reason = Reason.SIGNAL

    def _otherwise(self, leaves: bool) -> Otherwise:
        if leaves:
            return Otherwise.LEAVE
        return Otherwise.RENEW if self._runtime.monotonic() >= self._renew_at else Otherwise.SLEEP

    def _turn(self, crew: Combiner, leader: Call, reason: Reason, otherwise: Otherwise) -> Turn:
        tidies, attempts = self._memory.is_time_to_tidy(), 0
        held_us, silent_us = (
            round(1_000_000 * self._or_some_commits(patience_s))
            for patience_s in (limits.SHARE_HELD_S, limits.SILENT_S)
        )

        def body(tr: Transaction) -> Turn:
            nonlocal attempts
            # Claim before the first read: an answer of nothing holds only for calls that were there then.
            calls = crew.claim(self._ticket.count, limits.BATCH_BYTES_MAX)
            if not calls:  # all are stopped
                return replace(self._line.withdraw(tr, self._ticket), outcome=Outcome.LEFT, answers=())
            attempts += 1
            look = Look(
                self._runtime.now_us(),
                reason if attempts == 1 or reason in (Reason.NEGLECT, Reason.RENEWAL) else Reason.CONFLICT,
                otherwise,
                wanted=sum(call.count for call in calls),
                ahead=self._memory.ahead,
                held_us=held_us,
                silent_us=silent_us,
                tidies=tidies,
            )
            return self._line.look(tr, self._ticket, look)

        def keep(turn: Turn) -> None:
            _deal_turn(crew, turn, to_all=leader.until is None)

        turn = run_once(
            self._database,
            self._root,
            body,
            wrote=attrgetter("wrote"),
            may_be_lost=self._may_be_lost,
            keep=keep,
            unsure=crew.hold,
            doubt=crew.fail,
        )
        if turn.renewed:
            self._renew_at = self._runtime.monotonic() + self._renews_in_s(is_watched=turn.is_watched)
        if turn.outcome not in _UNDECIDED:
            self._memory.note(turn)
        return turn

    def _may_be_lost(self, turn: Turn) -> bool:
        return turn.may_be_lost and not (self._is_named and turn.answers)

    def _sleep(self, turn: Turn, leader: Call, otherwise: Otherwise) -> Reason:
        """Wait until a watch fires, or until the next look is due. Return the reason for that look."""
        patience = self._patience(leader, turn)
        if turn.due_us is not None:
            patience = min(patience, turn.due_us / 1_000_000 - self._runtime.now())
        woken_by = self._wait(turn.watches, patience, turn.follows)
        if woken_by is not None:
            return woken_by
        # The requests ahead have not taken the items that belong to them: their owners may be dead.
        neglected = otherwise is Otherwise.LEAVE or turn.outcome is Outcome.PENDING
        return Reason.NEGLECT if neglected else Reason.RENEWAL

    def _wait(self, watches: Sequence[Future], patience_s: float, follows: bytes) -> Reason | None:
        """Sleep at most `patience_s`. Return the reason to look, None if no watch fired.

        The first watch is of the request itself. `follows`: the params of the request ahead.
        """
        refused = [_is_refused(watch) for watch in watches]
        heard = [watch for watch, is_refused in zip(watches, refused, strict=True) if not is_refused]
        try:
            woken = self._wait_any([*heard, self._nudge], max(0.0, patience_s), follows)
            is_served = watches[0].is_ready() and not refused[0]
        finally:  # an interrupted wait, too: a watch with a callback outlives its last reference
            self._nudge.forget()
            for watch in watches:
                watch.cancel()
        self._database.counters.wake_ups += woken
        if not woken:
            return None
        return Reason.NOTICE if is_served else Reason.SIGNAL

    def _wait_any(self, signals: Sequence[Waitable], patience_s: float, follows: bytes) -> bool:
        """Until a signal comes, or the process of the request ahead is gone, as a directory tells."""
        look_s = math.inf if is_gone(self._database.engine, follows) is None else limits.DEATH_SEEN_S
        while patience_s > look_s:
            if self._runtime.wait_any(signals, look_s) or is_gone(self._database.engine, follows):
                return True
            patience_s -= look_s
        return self._runtime.wait_any(signals, patience_s) or bool(is_gone(self._database.engine, follows))

    def _patience(self, leader: Call, turn: Turn) -> float:
        """Seconds to sleep at most. A request behind others looks to renew itself only: watches wake it."""
        look_s = limits.LOOK_EVERY_S if turn.leads or leader.until is None else math.inf
        if leader.until is None or turn.outcome is Outcome.PENDING:
            look_s = min(look_s, self._or_some_commits(limits.SERVE_PATIENCE_S))
        if leader.until is None:
            return self._jittered(look_s)
        next_event = min(leader.until, self._renew_at) - self._runtime.monotonic()
        return min(next_event, self._jittered(look_s))

    def _or_some_commits(self, seconds: float) -> float:
        """`seconds`, or limits.SERVE_PATIENCE_COMMITS commits: on a slow disk, takes ahead need longer."""
        return max(seconds, limits.SERVE_PATIENCE_COMMITS * self._commit_s)

    def _renews_in_s(self, *, is_watched: bool) -> float:
        """Seconds to the next renewal, which is a sign of life if others watch the request."""
        longest_s = min(limits.LIFE_SIGN_S, limits.REQUEST_RENEW_S) if is_watched else limits.REQUEST_RENEW_S
        return self._jittered(longest_s)

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.5 + self._runtime.random() / 2)

    def _abandon(self, ticket_of: Callable[[Transaction], Ticket]) -> None:
        """Withdraw the request, and return its results. Best effort: the line removes dead requests."""

        def withdraw(tr: Transaction) -> None:
            if self._line.withdraw(tr, ticket_of(tr)).may_be_lost:
                may_be_lost(tr)

        with suppress(Exception):
            run(self._database, withdraw, timeout_s=limits.CLOSE_TIMEOUT_S)


def _deal_turn(crew: Combiner, turn: Turn, to_all: bool) -> None:
    if turn.outcome is Outcome.SERVED:
        crew.deal(turn.answers, to_all=False)
    elif turn.outcome is Outcome.LEFT:
        crew.deal((), to_all=to_all)
    else:
        crew.release()


def _is_refused(watch: Future) -> bool:
    """True if the database refused the watch, as there are too many. Such a watch is ready at once: taken
    for a signal, it would make its request look without end.

    A watch with an error that passes is a signal: the request would hear nothing until its next look.
    """
    if not watch.is_ready():
        return False
    try:
        watch.wait()
    except engine_errors() as error:
        return error.code not in _PASSING
    return False


class Memory:
    """The last turns of one process in a line, which tell how to begin the next take.

    After a turn in a crowd, a take goes straight to the line. After a turn without an item it first tries
    without a request: that costs less in an empty queue, and checks the session, which the line does not.
    """

    def __init__(self, database: Database) -> None:
        self._monotonic = database.runtime.monotonic
        self.crowded_until = float("-inf")
        self._tidy_at = float("-inf")
        self.ahead = 0
        """Estimated number of items that belong to requests ahead."""

    def note(self, turn: Turn) -> None:
        if not turn.answers:
            self.crowded_until = float("-inf")
        elif turn.crowd >= limits.CROWD_MIN:
            self.crowded_until = self._monotonic() + limits.STAGED_HINT_S
        self.ahead = max(turn.ahead, (self.ahead + turn.ahead) // 2)

    def is_time_to_tidy(self) -> bool:
        now = self._monotonic()
        if now < self._tidy_at:
            return False
        self._tidy_at = now + limits.LINE_TIDIED_EVERY_S
        return True


_wrote, _count, _may_be_lost = attrgetter("wrote"), attrgetter("count"), attrgetter("may_be_lost")
_payload = attrgetter("payload")

TakeInTurn = Callable[[Transaction, int, bytes, int, int | None], Taken]
"""Given a transaction, a count, params, a time and a number of items to leave: as Taker.take_in_turn."""


class Takes:
    """Takes given a database: each has its effect once (once.py). Those of several threads combine."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        line: Line,
        take_in_turn: TakeInTurn,
        new_params: Callable[[], bytes] | None = None,
        give_back: Callable[[Sequence[Any]], None] | None = None,
        are_held: Callable[[Transaction, Sequence[Any]], bool] | None = None,
        *,
        is_named: bool = False,
        is_plain: bool = False,
        lost: Callable[[], None] | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """`new_params` makes the params of a new request, which the source of the line reads; in a directory,
        they begin with the name of this process, if it alone has the request. Without it, they tell the
        process only. `give_back` undoes a take, and
        `are_held` tells that one of its leases is there, so that no take needs a receipt; None
        if a take is final. `is_named`: the takes of a session that another process may go
        on with after a power cut, so each item that it gets is durable. `is_plain`: no code of the user
        decodes values. `lost` is called after another taker has won the race for an item. `has_ended`: true
        from a moment before `end_waits`; a call that begins to wait later than that does not wait.
        """
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._line = line
        if not knows_processes(database.engine):
            line.life.watch()
        self._take_in_turn = take_in_turn
        self._new_params = new_params or partial(name_of_process, database.engine)
        self._is_of_items = new_params is None
        self._give_back = give_back
        self._evidence = None if are_held is None else partial(_are_taken, are_held)
        self._is_named = is_named
        self._may_be_lost = _may_be_lost_of_name if is_named else _may_be_lost
        self._short = Short() if is_plain else None
        self._lost = lost
        self._memory = Memory(database)
        self._known: Overtaking | None = None
        self._place: Place | None = None
        self._nudge = Nudge()
        self._takes = Combiner(database.runtime, self._take_for)
        self._waits = Combiner(database.runtime, self._wait_for, self._nudge.give, has_ended)

    @property
    def overtaking(self) -> "Overtaking":
        """The state of the takes that may overtake, made for the first of them."""
        if self._known is None:
            self._known = late.overtaking.Overtaking(self._runtime)
        return self._known

    def left_by(self, overtakes: Iterable[int]) -> int | None:
        """As Overtaking.left_by. Now and then, when it is time to tidy the line, the takes begin anew."""
        return self.overtaking.left_by(overtakes, anew=self._memory.is_time_to_tidy())

    def take(self, count: int, stop: Stop | None = None, overtake: int = 0) -> Sequence[Any]:
        """Take up to `count` items. After lost races, up to `overtake` older ones are left behind."""
        with Waiter(self._database.waiters, (stop,)) as waiter:  # as Database.waiter, with fewer calls
            call = self._takes.call(overtake, count)
            return call.answer if waiter.reason is None else self._kept(call, waiter)

    def wait(
        self, timeout_s: float, count: int = 1, stop: Stop | None = None, overtake: int = 0
    ) -> Sequence[Any]:
        """As `take`, and wait for the first item. Empty only if there is none at the end.

        Raises: WaitStopped as soon as `stop` is set, DatabaseClosed as soon as the database closes. Then the
        call has left the line, and its results are back in their places.
        """
        until = self._runtime.monotonic() + timeout_s
        with self._database.waiter(stop) as waiter:
            call = self._waits.call(overtake, count, until=until, waiter=waiter)
            if call.state is not CallState.DONE:
                waiter.check()
                call = self._takes.call(overtake, count)
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
        if not self._without_a_place(crew, leader, to_all=True):
            self._new_place(crew, self._claim(crew)).stand(crew, leader)

    def _wait_for(self, crew: Combiner, leader: Call) -> bool:
        """True if a request stays in the line: another call has to lead, or its item would lie unused."""
        if self._place is None:
            if self._without_a_place(crew, leader, to_all=False):
                return False
            calls = self._claim(crew)
            if not calls:  # all have been stopped
                return False
            self._place = self._new_place(crew, calls)
        if self._place.stand(crew, leader) is Outcome.WAIT:
            return True
        self._place = None
        return False

    def _without_a_place(self, crew: Combiner, leader: Call, to_all: bool) -> bool:
        """Take for all callers in one transaction, without a request. False if they have to register."""
        is_crowded = self._runtime.monotonic() < self._memory.crowded_until
        overtake: int = leader.payload
        if is_crowded and not overtake:
            return False
        short = self._short if leader.count <= limits.DIRECT_ITEMS_MAX else None
        if overtake and self.overtaking.left:
            short = None  # it reads many items, and races show that other processes lead, too
        params = self._new_params()

        def unsure() -> None:
            nonlocal params
            crew.hold()
            params = self._new_params()  # the attempt in doubt may have a lease

        def body(tr: Transaction) -> Taken:
            return self._take(tr, crew, params)

        attempt = 0
        while True:
            attempt += 1
            may_be_direct = short is not None and not short.resting
            try:
                taken = run_once(
                    self._database,
                    self._root,
                    body,
                    wrote=_wrote if self._evidence is None else _never,
                    may_be_lost=self._may_be_lost,
                    keep=partial(_deal_taken, crew, to_all=to_all),
                    unsure=unsure,
                    doubt=crew.fail,
                    evidence=self._evidence,
                    yield_to_conflict=True,
                    short=short,
                )
            except LostConflict:  # another taker won the race
                crew.release()
                if self._lost is not None:
                    self._lost()
                if self.overtaking.lost(overtake) if overtake else attempt >= limits.PLAIN_ATTEMPTS_MAX:
                    return False
                continue
            if overtake and taken.values:
                self.overtaking.won()
            if taken.turn is not None:
                self._memory.note(taken.turn)
            if may_be_direct and short is not None and not taken.wrote:
                short.resting = 1  # few polls of an empty queue hold up a commit
            if taken.values or not taken.is_open:
                return to_all or bool(taken.values)
            if is_crowded or attempt >= limits.PLAIN_ATTEMPTS_MAX:
                return False

    def _take(self, tr: Transaction, crew: Combiner, params: bytes) -> Taken:
        # Claimed before the first read: only these callers may be told that there is nothing.
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        if not calls:  # all have been stopped
            return Taken()
        count = sum(map(_count, calls))
        if count > limits.DIRECT_ITEMS_MAX:
            require_ordinary(tr)
        left = None if self._known is None else self.left_by(map(_payload, calls))
        return self._take_in_turn(tr, count, params, round(self._runtime.now() * 1_000_000), left)

    def _claim(self, crew: Combiner) -> Sequence[Call]:
        return crew.claim(limits.SERVE_MAX, limits.BATCH_BYTES_MAX)

    def _new_place(self, crew: Combiner, calls: Sequence[Call]) -> Place:
        count = min(sum(map(_count, calls)), limits.SERVE_MAX)
        self._database.counters.requests += 1
        nudge = self._nudge if crew is self._waits else Nudge()  # one wakes one sleeper
        params = self._new_params()
        if self._is_of_items:
            params += late.waiting.process_params(self._runtime.host_name(), self._runtime.process_id())
        return Place(
            self._database,
            self._root,
            self._line,
            count,
            params,
            nudge,
            self._memory,
            self._is_named,
        )


def _never(_: Taken) -> bool:
    return False


def _are_taken(are_held: Callable[[Transaction, Sequence[Any]], bool], tr: Transaction, taken: Taken) -> bool:
    return bool(taken.values) and are_held(tr, taken.values)


def _may_be_lost_of_name(taken: Taken) -> bool:
    return taken.may_be_lost and not taken.values


def _deal_taken(crew: Combiner, taken: Taken, to_all: bool) -> None:
    if not taken.values and taken.is_open:
        crew.release()
    else:
        crew.deal(taken.values, to_all=to_all and not taken.cut_short)
