"""One process's place in a waiting line: register, sleep, look, serve.

Each step is a transaction of its own (line/staging.py); this is the loop around them, and the only part that
waits. It works for the callers of a Combiner: one request in the line stands for all of them.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from fdbqueue import limits
from fdbqueue.calls.combine import Call, Combiner
from fdbqueue.calls.once import run_once
from fdbqueue.database import Database, engine_errors, run
from fdbqueue.line.decision import Look, Otherwise, Reason
from fdbqueue.line.keys import Ticket
from fdbqueue.line.staging import Line, Outcome, Turn
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Future, Transaction

_UNDECIDED = (Outcome.AGAIN, Outcome.WAIT, Outcome.PENDING)
"""Outcomes after which the request is still in the line."""


class Nudge:
    """Wakes the one who sleeps in a line; if nobody does, the next who would. A `Waitable`."""

    def __init__(self) -> None:
        self._given = False
        self._callback: Callable[[Any], None] | None = None

    def is_ready(self) -> bool:
        return self._given

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        if self._given:  # between the question and this
            callback(self)

    def give(self) -> None:
        self._given = True
        callback = self._callback
        if callback is not None:
            callback(self)

    def forget(self) -> None:
        self._given, self._callback = False, None


class Place:
    """A request of this process in a line, which outlives the thread that registered it."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        line: Line,
        count: int,
        params: bytes,
        nudge: Nudge,
        memory: "Memory",
    ) -> None:
        """Register for `count` items, at most limits.SERVE_MAX of which one turn gives. A `nudge` wakes it
        to look at its callers' time again.
        """
        self._nudge = nudge
        self._memory = memory
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._line = line
        began = self._runtime.monotonic()
        self._renew_at = began + self._jittered(limits.REQUEST_RENEW_S)
        rid = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._ticket = Ticket(self._register(rid, count, params), rid, count, params)
        self._commit_s = self._runtime.monotonic() - began

    def _register(self, rid: bytes, count: int, params: bytes) -> bytes:
        """The stamp; empty if the request has left the line before it was known."""
        stamps: list[bytes] = []

        def body(tr: Transaction) -> Future:
            self._line.register(tr, rid, count, params, self._runtime.now_us())
            return tr.get_versionstamp()

        def keep(stamp: Future) -> None:
            with suppress(*engine_errors()):  # of an attempt whose result was unknown
                stamps.append(bytes(stamp.wait()))

        try:
            run_once(self._database, self._root, body, keep=keep)
            return stamps[0] if stamps else run(self._database, lambda tr: self._line.find(tr, rid)).stamp
        except BaseException:
            self._abandon(lambda tr: self._line.find(tr, rid))  # it may have been registered all the same
            raise

    def stand(self, crew: Combiner, leader: Call) -> Outcome:
        """Stand in the line until calls of `crew` are answered, or there is no reason to stand any longer.

        SERVED: answers have been dealt out. LEFT: the claimed calls that may not wait have been told that
        there is nothing, or nobody was left to wait. GONE: the request was lost, register again. WAIT: the
        leader's time is over, the request stays for the others.
        """
        try:
            return self._stand(crew, leader)
        except BaseException:
            # Others who wait go on in this place; those who may not wait register anew.
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
            turn = self._turn(crew, leader, _reason_to(otherwise, reason), otherwise)
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
        held_us = round(1_000_000 * self._or_some_commits(limits.SHARE_HELD_S))

        def body(tr: Transaction) -> Turn:
            nonlocal attempts
            # Claimed before anything is read: what is not there now may be told only to these.
            calls = crew.claim(self._ticket.count, limits.BATCH_BYTES_MAX)
            if not calls:  # all have been stopped meanwhile
                self._line.withdraw(tr, self._ticket)
                return Turn(Outcome.LEFT)
            attempts += 1
            look = Look(
                self._runtime.now_us(),
                reason if attempts == 1 else _reason_after_conflict(reason),
                otherwise,
                wanted=sum(call.count for call in calls),
                ahead=self._memory.ahead,
                held_us=held_us,
                tidies=tidies,
            )
            return self._line.look(tr, self._ticket, look)

        def keep(turn: Turn) -> None:
            _answer(crew, turn, to_all=leader.until is None)

        turn = run_once(self._database, self._root, body, wrote=lambda turn: turn.wrote, keep=keep)
        if turn.renewed:
            self._renew_at = self._runtime.monotonic() + self._jittered(limits.REQUEST_RENEW_S)
        if turn.outcome not in _UNDECIDED:
            self._memory.note(turn)
        return turn

    def _sleep(self, turn: Turn, leader: Call, otherwise: Otherwise) -> Reason:
        """Wait until a watch fires, or until the next look is due. Return the reason for that look."""
        patience = self._patience(leader, turn)
        if turn.due_us is not None:
            patience = min(patience, turn.due_us / 1_000_000 - self._runtime.now())
        woken_by = self._wait(turn.watches, patience)
        if woken_by is not None:
            return woken_by
        # The requests that the items are for have not taken them: their owners may be dead.
        neglected = otherwise is Otherwise.LEAVE or turn.outcome is Outcome.PENDING
        return Reason.NEGLECT if neglected else Reason.RENEWAL

    def _wait(self, watches: Sequence[Future], patience_s: float) -> Reason | None:
        """The reason that woke it; None if `patience_s` is over. The first watch is of the own request."""
        refused = [_is_refused(watch) for watch in watches]
        heard = [watch for watch, is_refused in zip(watches, refused, strict=True) if not is_refused]
        woken = self._runtime.wait_any([*heard, self._nudge], max(0.0, patience_s))
        self._nudge.forget()
        is_served = watches[0].is_ready() and not refused[0]
        self._database.counters.wake_ups += woken
        for watch in watches:
            watch.cancel()
        if not woken:
            return None
        return Reason.NOTICE if is_served else Reason.SIGNAL

    def _patience(self, leader: Call, turn: Turn) -> float:
        """Seconds to sleep at most. A request behind others looks only to renew itself: watches wake it."""
        look_s = limits.LOOK_EVERY_S if turn.leads or leader.until is None else math.inf
        if leader.until is None or turn.outcome is Outcome.PENDING:
            look_s = min(look_s, self._or_some_commits(limits.SERVE_PATIENCE_S))
        if leader.until is None:
            return self._jittered(look_s)
        next_event = min(leader.until, self._renew_at) - self._runtime.monotonic()
        return min(next_event, self._jittered(look_s))

    def _or_some_commits(self, seconds: float) -> float:
        """On a slow disk others need longer to take their shares than on a fast one."""
        return max(seconds, limits.SERVE_PATIENCE_COMMITS * self._commit_s)

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.5 + self._runtime.random() / 2)

    def _abandon(self, ticket_of: Callable[[Transaction], Ticket]) -> None:
        """The callers are gone: give back what came meanwhile. Best effort: the line forgets the dead."""

        def withdraw(tr: Transaction) -> None:
            self._line.withdraw(tr, ticket_of(tr))

        with suppress(Exception):
            run(self._database, withdraw, timeout_s=limits.CLOSE_TIMEOUT_S)


def _reason_to(otherwise: Otherwise, reason: Reason) -> Reason:
    """A request that leaves must know whether anything is available, so it does not merely check."""
    return Reason.SIGNAL if reason is Reason.RENEWAL and otherwise is Otherwise.LEAVE else reason


def _reason_after_conflict(reason: Reason) -> Reason:
    return reason if reason in (Reason.NEGLECT, Reason.RENEWAL) else Reason.CONFLICT


def _answer(crew: Combiner, turn: Turn, to_all: bool) -> None:
    if turn.outcome is Outcome.SERVED:
        crew.deal(turn.answers, to_all=False)
    elif turn.outcome is Outcome.LEFT:
        crew.deal((), to_all=to_all)
    else:
        crew.release()


def _is_refused(watch: Future) -> bool:
    """Ready with an error: there are too many. Taken for a call, its waiter would look without end."""
    if not watch.is_ready():
        return False
    try:
        watch.wait()
    except engine_errors():
        return True
    return False


class Memory:
    """What one process remembers of a line.

    Where it stood in a crowd a moment ago it goes straight to the line. Not after a request that brought
    nothing: a plain attempt asks for what the line takes for granted, such as whether the session still
    lives, and costs the least where there is nothing to take.
    """

    def __init__(self, database: Database) -> None:
        self._monotonic = database.runtime.monotonic
        self._crowded_until = float("-inf")
        self._tidy_at = float("-inf")
        self.ahead = 0  # how many items were for those before it

    def note(self, turn: Turn) -> None:
        if not turn.answers:
            self._crowded_until = float("-inf")
        elif turn.crowd >= limits.CROWD_MIN:
            self._crowded_until = self._monotonic() + limits.STAGED_HINT_S
        self.ahead = max(turn.ahead, (self.ahead + turn.ahead) // 2)

    def is_crowded(self) -> bool:
        return self._monotonic() < self._crowded_until

    def is_time_to_tidy(self) -> bool:
        now = self._monotonic()
        if now < self._tidy_at:
            return False
        self._tidy_at = now + limits.LINE_TIDIED_EVERY_S
        return True
