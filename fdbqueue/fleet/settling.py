"""Settling: what has been judged of an attempt is written down, once, under the lease it was made with."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue import limits
from fdbqueue.calls.once import run_once
from fdbqueue.database import Database, engine_errors, run
from fdbqueue.deferred import require_finished
from fdbqueue.errors import EffectTooLarge, EffectTooSlow, LeaseLost, NotTaken, TaskNotFound
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.outcomes import Done, Effect, Failed, Policy, check_returned
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.task import Task

Handler = Callable[..., object]

# Who may say what becomes of a task that is held.
ITS_THREAD, HEARTBEAT, STOP = "its thread", "the heartbeat", "the end"

_TRANSACTION_TOO_OLD = 1007
_TRANSACTION_TOO_LARGE = 2101


@dataclass(frozen=True)
class Settled:
    """What came of a task: "succeeded", "retried", "snoozed", "buried" or "lease_lost"."""

    name: str
    delay_s: float = 0.0


ACKED = Settled("succeeded")
_ENDED_BY = {
    "ack": ACKED,
    "delete": ACKED,
    "release": Settled("snoozed"),
    "retry": Settled("retried"),
    "bury": Settled("buried"),
}


def ended(hold: Hold) -> Settled | None:
    """The end that the handler itself has given its lease with a verb of its queue, if it has."""
    return None if hold.ended_by is None else _ENDED_BY[hold.ended_by]


class Settling:
    """Every call raises NotTaken if the lease is over; then it has changed nothing."""

    def __init__(self, database: Database, root: RootKeys, policy: Policy) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._policy = policy
        self._process_id = database.runtime.process_id()

    def attempt(self, hold: Hold, handler: Handler, transactional: bool) -> Settled:
        """Have the handler at the task, and ack it unless the handler has ended its lease with a verb.

        Raises the error of the handler.
        """
        if transactional:
            self._commit_with(hold, lambda tr: self._work_in(tr, handler, hold))
            return ended(hold) or ACKED
        try:
            return self._ack(hold, self._call(handler, hold.task))
        except (NotTaken, LeaseLost):
            own = ended(hold)
            if own is None:
                raise
            return own

    def _ack(self, hold: Hold, effect: Effect | None) -> Settled:
        if not hold.claim(ITS_THREAD):
            raise NotTaken(id=hold.task.id)
        if effect is None:
            hold.queue.ack(self._database, hold.lease)
            return ACKED
        hold.ended_by = None  # a lease that the handler has ended drops its effect, which is told as a loss
        self._commit_with(hold, lambda tr: self._ack_and(tr, hold, effect))
        return ACKED

    def snooze(self, hold: Hold, delay_s: float) -> Settled:
        """Put the task off, as its handler wants it."""
        hold.queue.defer(self._database, hold.lease, delay_s)
        return Settled("snoozed", delay_s)

    def fail(self, hold: Hold, failed: Failed) -> Settled:
        """Release or bury the task, as the policy has it, and write down why."""
        random = self._runtime.random()

        def body(tr: Transaction) -> Settled:
            # As the queue has it: what was counted by mistake may have been taken back since the take.
            failures = self._peek(tr, hold).failures + 1
            if self._policy.buries(failed, failures):
                hold.queue.bury(tr, hold.lease, failure=failed.failure)
                return Settled("buried")
            delay_s = self._policy.delay_s(failed, failures, random)
            hold.queue.release(tr, hold.lease, delay=delay_s, failure=failed.failure)
            return Settled("retried", delay_s)

        return run_once(self._database, self._root, body)

    def _peek(self, tr: Transaction, hold: Hold) -> Task:
        try:
            return hold.queue.peek(tr, hold.task)
        except TaskNotFound:
            raise NotTaken(id=hold.task.id) from None

    def bury_if_exhausted(self, hold: Hold) -> bool:
        """Whether too many attempts have ended before anybody could say what became of them."""
        most = self._policy.max_attempts
        if most is None or not self._policy.is_exhausted(hold.task.failures):
            return False
        return hold.queue.exhaust(self._database, hold.task, most)

    def give_back(self, hold: Hold, delay_s: float = 0.0, timeout_s: float | None = None) -> None:
        """As if it had not been taken, but for the count of that; for others to have in `delay_s`."""
        # A second try after an unknown result finds that it is not ours: that is what it wanted.
        run(self._database, lambda tr: hold.queue.give_back(tr, hold.lease, delay_s), timeout_s=timeout_s)

    def _call(self, handler: Handler, *arguments: Any) -> Effect | None:
        """The effect that the handler wants with its ack."""
        try:
            check_returned(handler(*arguments))
        except Done as done:
            return done.effect
        finally:
            if self._runtime.process_id() != self._process_id:
                # A child that the handler has forked: the lease is its parent's to end.
                os._exit(0)
        return None

    def _work_in(self, tr: Transaction, handler: Handler, hold: Hold) -> None:
        hold.ended_by = None  # an earlier try of this transaction has not happened
        effect = self._call(handler, tr, hold.task)
        if effect is not None:
            self._ack_and(tr, hold, effect)
        elif hold.ended_by is None:
            hold.queue.ack(tr, hold.lease)

    def _ack_and(self, tr: Transaction, hold: Hold, effect: Effect) -> None:
        hold.queue.ack(tr, hold.lease)
        _apply(effect, tr)

    def _commit_with(self, hold: Hold, work: Callable[[Transaction], None]) -> None:
        def body(tr: Transaction) -> None:
            began_s = self._runtime.monotonic()
            try:
                work(tr)
                size_bytes = tr.get_approximate_size().wait()
            except engine_errors() as error:
                self._explain(error, hold, began_s)
                raise
            self._require_room(hold, size_bytes, began_s)

        run_once(self._database, self._root, body)

    def _explain(self, error: Any, hold: Hold, began_s: float) -> None:
        """Raises the error that says what to do, where the engine's would be retried for ever or explain
        nothing.
        """
        seconds = self._runtime.monotonic() - began_s
        if error.code == _TRANSACTION_TOO_OLD and seconds > limits.EFFECT_MAX_S:
            raise EffectTooSlow(id=hold.task.id, seconds=seconds) from error
        if error.code == _TRANSACTION_TOO_LARGE:
            raise EffectTooLarge(id=hold.task.id, size_bytes=limits.TRANSACTION_BYTES_MAX) from error

    def _require_room(self, hold: Hold, size_bytes: int, began_s: float) -> None:
        seconds = self._runtime.monotonic() - began_s
        if seconds > limits.EFFECT_MAX_S:
            raise EffectTooSlow(id=hold.task.id, seconds=seconds)
        if size_bytes > limits.EFFECT_BYTES_MAX:
            raise EffectTooLarge(id=hold.task.id, size_bytes=size_bytes)


def _apply(effect: Effect, tr: Transaction) -> None:
    """Raises DeferredResult, and whatever the effect raises; then its transaction is not committed."""
    require_finished("the effect", effect(tr))
