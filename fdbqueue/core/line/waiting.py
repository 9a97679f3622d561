"""The request of one process in a waiting line: register, sleep, look, serve.

Each step is a transaction of its own (line/staging.py). The loop around them is here, and is the only part of
the line that waits. One request stands for all callers of a Combiner.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.binding import is_gone, may_be_lost
from fdbqueue.core.calls.combine import Call, Combiner
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database, run
from fdbqueue.core.fdberror import engine_errors
from fdbqueue.core.line.decision import Look, Otherwise, Reason
from fdbqueue.core.line.keys import Ticket
from fdbqueue.core.line.staging import Line, Outcome, Turn
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Waitable
from fdbqueue.core.seam import Future, Transaction

_UNDECIDED = (Outcome.AGAIN, Outcome.WAIT, Outcome.PENDING)
"""Outcomes after which the request is still in the line."""

_PASSING = MAYBE_COMMITTED | {1007, 1009}
"""Errors of watches after which others can be armed: unknown result, read version too old or too new."""


class Nudge:
    """Wakes the leader that sleeps in the line, or ends the next sleep at once. A `Waitable`."""

    def __init__(self) -> None:
        self._given = False
        self._callback: Callable[[Any], None] | None = None

    def is_ready(self) -> bool:
        return self._given

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        if self._given:  # after the sleeper has asked `is_ready`
            callback(self)

    def give(self) -> None:
        self._given = True
        callback = self._callback
        if callback is not None:
            callback(self)

    def forget(self) -> None:
        self._given, self._callback = False, None


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
            _answer(crew, turn, to_all=leader.until is None)

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


def _answer(crew: Combiner, turn: Turn, to_all: bool) -> None:
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
