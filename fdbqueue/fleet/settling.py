"""Settling: commits the outcome of an attempt, once, under the lease of that attempt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits, observing
from fdbqueue.core import logger as loggers
from fdbqueue.core.arguments import require_finished
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import EffectTooLarge, EffectTooSlow, LeaseLost, NotTaken, TaskNotFound
from fdbqueue.core.observing import GIVEN_BACK, Attempt, Watch
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import parent_only
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.task import Task, TaskState
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.hooks import Event, Hooks
from fdbqueue.fleet.outcomes import Done, Failed, Policy, checked_returned
from fdbqueue.fleet.status import Tally
from fdbqueue.tasks.handle import has_come_back
from fdbqueue.tasks.verbs import TRANSACTION_TOO_LARGE

Handler = Callable[..., object]

# The claimants of a hold: the first of them decides the outcome.
ITS_THREAD, HEARTBEAT, STOP = "its thread", "the heartbeat", "the end"

_TRANSACTION_TOO_OLD = 1007


@dataclass(frozen=True)
class Settled:
    """A committed outcome: "succeeded", "retried", "snoozed", "buried", "cancelled" or "lease_lost"."""

    name: str
    delay_s: float = 0.0


ACKED, CANCELLED = Settled("succeeded"), Settled("cancelled")
_ENDED_BY = {
    "ack": ACKED,
    "delete": ACKED,
    "release": Settled("snoozed"),
    "retry": Settled("retried"),
    "bury": Settled("buried"),
}


def unless_cancelled(after: Task, settled: Settled) -> Settled:
    """Return the outcome of a verb that gives a task back: one that was cancelled meanwhile is gone."""
    return CANCELLED if after.state == TaskState.DONE else settled


def ended(hold: Hold) -> Settled | None:
    """Return the outcome that the handler itself committed with a verb of its queue; None without one."""
    return None if hold.ended_by is None else _ENDED_BY[hold.ended_by]


class Settling:
    """Every call raises NotTaken, and changes nothing, if the lease is over."""

    def __init__(self, database: Database, root: RootKeys, policy: Policy) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._policy = policy

    def attempt(self, hold: Hold, handler: Handler, transactional: bool) -> Settled:
        """Call the handler, then ack the task, unless the handler ended its lease with a verb."""
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

    def _ack(self, hold: Hold, done: Done) -> Settled:
        self._claim(hold)
        if done.effect is None:
            hold.queue.ack(self._database, hold.lease, result=done.result)
            return ACKED
        # If the handler has ended its lease, this ack raises NotTaken: the effect is lost.
        hold.note_end(None, within=False)
        self._commit_with(hold, lambda tr: self._ack_and(tr, hold, done))
        return ACKED

    def snooze(self, hold: Hold, delay_s: float) -> Settled:
        after = hold.queue.defer(self._database, hold.lease, delay_s)
        return unless_cancelled(after, Settled("snoozed", delay_s))

    def put_off(self, hold: Hold, delay_s: float) -> Settled:
        """Put the task off, as something that every task needs is away: that is no failure."""
        after = hold.queue.give_back(self._database, hold.lease, delay_s)
        return unless_cancelled(after, Settled("retried", delay_s))

    def cancel(self, hold: Hold) -> Settled:
        return unless_cancelled(hold.queue.release(self._database, hold.lease), Settled("snoozed"))

    def fail(self, hold: Hold, failed: Failed) -> Settled:
        """Release or bury the task by the policy, and record the failure."""
        random = self._runtime.random()

        def body(tr: Transaction) -> Settled:
            # Read again: a failure may have been excused since the take.
            failures = self._peek(tr, hold).failures + 1
            if self._policy.buries(failed, failures):
                after = hold.queue.bury(tr, hold.lease, failure=failed.failure)
                return unless_cancelled(after, Settled("buried"))
            delay_s = self._policy.delay_s(failed, failures, random)
            after = hold.queue.release(tr, hold.lease, delay=delay_s, failure=failed.failure)
            return unless_cancelled(after, Settled("retried", delay_s))

        return run_once(self._database, self._root, body)

    def _peek(self, tr: Transaction, hold: Hold) -> Task:
        try:
            return hold.queue.peek(tr, hold.task)
        except TaskNotFound:
            raise NotTaken(id=hold.task.id) from None

    def bury_if_exhausted(self, hold: Hold) -> bool:
        """Bury a task that has used up its attempts without an outcome. True if it was buried."""
        most = self._policy.max_attempts
        if most is None or not self._policy.is_exhausted(hold.task.failures):
            return False
        return hold.queue.exhaust(self._database, hold.task, most)

    def give_back(self, hold: Hold, delay_s: float = 0.0, timeout_s: float | None = None) -> None:
        """Release the task without a failure; it is ready in `delay_s`. The take still counts."""

        def body(tr: Transaction) -> None:
            if has_come_back(hold.queue.give_back(tr, hold.lease, delay_s)):
                may_be_lost(tr)

        # After an unknown result, a second try raises NotTaken: the task was released, as wanted.
        run(self._database, body, timeout_s=timeout_s)

    def _call(self, handler: Handler, *arguments: Any) -> Done:
        """Call the handler; return the Done that it raised, or one with the value that it returned."""
        try:
            with parent_only(self._runtime):
                return Done(result=checked_returned(handler(*arguments)))
        except Done as done:
            return done

    def _work_in(self, tr: Transaction, handler: Handler, hold: Hold) -> None:
        hold.note_end(None, within=False)  # an earlier try of this transaction did not commit
        hold.disclaim(ITS_THREAD)
        done = self._call(handler, tr, hold.task)
        if done.effect is not None or hold.ended_by is None:
            self._ack_and(tr, hold, done)
        self._claim(hold)

    def _claim(self, hold: Hold) -> None:
        """Before the commit: a handler that ends at its timeout must not commit what is told as a failure."""
        if not hold.claim(ITS_THREAD):
            raise NotTaken(id=hold.task.id)

    def _ack_and(self, tr: Transaction, hold: Hold, done: Done) -> None:
        hold.queue.ack(tr, hold.lease, result=done.result)
        if done.effect is not None:
            with parent_only(self._runtime):
                require_finished("the effect", done.effect(tr))

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

        try:
            run_once(self._database, self._root, body)
        except BaseException:
            hold.undo_end()
            raise

    def _explain(self, error: Any, hold: Hold, began_s: float) -> None:
        """Raise an error that says what to do, in place of an engine's error that would be retried."""
        seconds = self._runtime.monotonic() - began_s
        if error.code == _TRANSACTION_TOO_OLD and seconds > limits.EFFECT_MAX_S:
            raise EffectTooSlow(id=hold.task.id, seconds=seconds) from error
        if error.code == TRANSACTION_TOO_LARGE:
            raise EffectTooLarge(id=hold.task.id, size_bytes=limits.TRANSACTION_BYTES_MAX) from error

    def _require_room(self, hold: Hold, size_bytes: int, began_s: float) -> None:
        seconds = self._runtime.monotonic() - began_s
        if seconds > limits.EFFECT_MAX_S:
            raise EffectTooSlow(id=hold.task.id, seconds=seconds)
        if size_bytes > limits.EFFECT_BYTES_MAX:
            raise EffectTooLarge(id=hold.task.id, size_bytes=size_bytes)


_TALLIED = {
    "succeeded": "done",
    "retried": "failed",
    "snoozed": "snoozed",
    "buried": "buried",
    "cancelled": "cancelled",
    "lease_lost": "lost",
}


class Telling:
    """Counts the attempts of a worker by outcome, and tells hooks, observers and the log of each."""

    def __init__(self, database: Database, hooks: Hooks) -> None:
        self._runtime = database.runtime
        self._troubles = database.troubles
        self._hooks = hooks
        self._lock = database.runtime.lock()
        self.tally = Tally()

    def began(self, hold: Hold) -> None:
        """The handler of `hold` is about to be called, by this thread."""
        if observing.observers:
            hold.watch = Watch(Attempt(hold.task.queue, hold.task))
        self._tell(Event("started", hold.task))

    def ended(self, hold: Hold, settled: Settled, error: BaseException | None = None) -> None:
        """The attempt has its outcome. Any thread may call this."""
        counted = {_TALLIED[settled.name]: 1}
        with self._lock:
            self.tally = self.tally + Tally(**counted)
        seconds = 0.0 if hold.began_at is None else self._runtime.monotonic() - hold.began_at
        with loggers.about(hold.task.queue, hold.task):
            if hold.watch is not None:
                hold.watch.end(settled.name, seconds, error)
            event = Event(settled.name, hold.task, seconds, error, settled.delay_s)
            self._tell(event)

    def _tell(self, event: Event) -> None:
        with parent_only(self._runtime):
            self._hooks.tell(event, self._troubles)

    def given_back(self, hold: Hold) -> None:
        """The worker gives the task back while its handler runs: the attempt has no outcome of its own."""
        if hold.watch is not None and hold.began_at is not None:
            hold.watch.end(GIVEN_BACK, self._runtime.monotonic() - hold.began_at, None)

    def left(self, hold: Hold) -> None:
        """The thread that called `began` goes on with something else."""
        if hold.watch is not None:
            hold.watch.left()
