"""Settling: commits the outcome of an attempt, once, under the lease of that attempt.

The heartbeat is the thread of a worker that renews all its leases, and ends attempts that run too long.
Beside it: which lost leases an outage of the database excuses.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue.core import limits, observing
from fdbqueue.core import logger as loggers
from fdbqueue.core.arguments import require_finished
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.database import Database, is_away, run
from fdbqueue.core.errors import (
    EffectTooLarge,
    EffectTooSlow,
    LeaseLost,
    NotTaken,
    QueueNotFound,
    heals,
)
from fdbqueue.core.logger import about, logger
from fdbqueue.core.observing import GIVEN_BACK, Attempt, Watch
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Runtime, parent_only
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.sessions.keeper import Silence, Spells
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Renewed, Task, TaskState
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.options import Event, Hooks
from fdbqueue.fleet.outcomes import Done, Failed, checked_returned
from fdbqueue.fleet.status import Tally
from fdbqueue.fleet.usual import Usual
from fdbqueue.tasks.acks import Acks
from fdbqueue.tasks.attempts import Asked, number_for
from fdbqueue.tasks.handle import has_come_back
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.verbs import TRANSACTION_TOO_LARGE

if TYPE_CHECKING:
    from fdbqueue.fleet.timing import Timing

Handler = Callable[..., object]
T = TypeVar("T")

# The claimants of a hold: the first of them decides the outcome.
ITS_THREAD, HEARTBEAT, STOP = "its thread", "the heartbeat", "the end"

_TRANSACTION_TOO_OLD = 1007


@dataclass(frozen=True)
class Settled:
    """A committed outcome: "succeeded", "retried", "snoozed", "handed_off", "buried", "cancelled" or
    "lease_lost".
    """

    name: str
    delay_s: float = 0.0
    reason: str = ""


USED_UP = Settled("buried", reason="its attempts are used up")
"""At the take of a task, before its handler is called."""
ACKED, CANCELLED = Settled("succeeded"), Settled("cancelled")
_ENDED_BY = {
    "ack": ACKED,
    "delete": ACKED,
    "release": Settled("snoozed"),
    "retry": Settled("retried"),
    "bury": Settled("buried"),
    "hand_off": Settled("handed_off"),
}


def unless_cancelled(after: Task, settled: Settled) -> Settled:
    """Return the outcome of a verb that gives a task back: one that was cancelled meanwhile is gone."""
    return CANCELLED if after.state == TaskState.DONE else settled


def ended(hold: Hold) -> Settled | None:
    """Return the outcome that the handler itself committed with a verb of its queue; None without one."""
    return None if hold.ended_by is None else _ENDED_BY[hold.ended_by]


class Settling:
    """Every call raises NotTaken, and changes nothing, if the lease is over."""

    def __init__(self, database: Database, root: RootKeys, asked: Asked) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._asked = asked
        self.acks: Acks | None = None
        """Those that take tasks along; None for a worker of several queues."""

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
            if self.acks is None:
                hold.queue.ack(self._database, hold.lease, result=done.result)
            else:
                hold.queue._acked_by(self._database, hold.lease, self.acks, done.result)
            return ACKED
        # If the handler has ended its lease, this ack raises NotTaken: the effect is lost.
        hold.note_end(None, within=False)
        self._commit_with(hold, lambda tr: self._ack_and(tr, hold, done))
        return ACKED

    def snooze(self, hold: Hold, delay_s: float, tr: Transaction | None = None) -> Settled:
        after = hold.queue.defer(tr or self._database, hold.lease, delay_s)
        return unless_cancelled(after, Settled("snoozed", delay_s))

    def hand_off(self, hold: Hold, ttl_s: float, for_: str | None, tr: Transaction | None = None) -> Settled:
        after = hold.queue.hand_off(tr or self._database, hold.lease, ttl_s, for_=for_)
        return unless_cancelled(after, Settled("handed_off"))

    def put_off(self, hold: Hold, delay_s: float, tr: Transaction | None = None) -> Settled:
        """Put the task off, as something that every task needs is away: that is no failure."""
        after = hold.queue.give_back(tr or self._database, hold.lease, delay_s)
        return unless_cancelled(after, Settled("retried", delay_s))

    def cancel(self, hold: Hold, tr: Transaction | None = None) -> Settled:
        return unless_cancelled(hold.queue.release(tr or self._database, hold.lease), Settled("snoozed"))

    def fail(self, hold: Hold, failed: Failed) -> Settled:
        """Release or bury the task by what is in force for it, and record the failure."""
        body = partial(self.fail_in, hold=hold, failed=failed, random=self._runtime.random())
        return run_once(self._database, self._root, body)

    def fail_in(self, tr: Transaction, hold: Hold, failed: Failed, random: float) -> Settled:
        # Read again: a failure may have been excused since the take.
        failures, rule = hold.queue._rule(tr, hold.lease, self._asked)
        if failed.for_good or rule.is_used_up(failures + 1):
            after = hold.queue.bury(tr, hold.lease, failure=failed.failure)
            return unless_cancelled(after, Settled("buried"))
        delay_s = rule.delay_s(failures + 1, random) if failed.delay_s is None else failed.delay_s
        after = hold.queue.release(tr, hold.lease, delay=delay_s, failure=failed.failure)
        return unless_cancelled(after, Settled("retried", delay_s))

    def is_last(self, hold: Hold, failures: int) -> bool:
        """True if the next failure of the task buries it."""
        most, _ = number_for(hold.task, hold.queue.options, self._asked)
        return most is not None and failures + 1 >= most

    def bury_if_exhausted(self, hold: Hold) -> bool:
        """Bury a task that has used up its attempts without an outcome. True if it was buried."""
        if not hold.task.failures:
            return False
        most, _ = number_for(hold.task, hold.queue.options, self._asked)
        if most is None or hold.task.failures < most:
            return False
        return run_once(self._database, self._root, partial(self._exhaust_in, hold=hold))

    def _exhaust_in(self, tr: Transaction, hold: Hold) -> bool:
        # Read again: the queue may have other attempts since the take.
        failures, rule = hold.queue._rule(tr, hold.lease, self._asked)
        if rule.attempts is None or not rule.is_used_up(failures):
            return False
        return hold.queue.exhaust(tr, hold.task, int(rule.attempts))

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
        self.affect(tr, done)

    def affect(self, tr: Transaction, done: Done) -> None:
        if done.effect is not None:
            with parent_only(self._runtime):
                require_finished("the effect", done.effect(tr))

    def _commit_with(self, hold: Hold, work: Callable[[Transaction], T]) -> T:
        """The answer of `work` in the transaction that has committed: not always the last one."""

        def body(tr: Transaction) -> T:
            began_s = self._runtime.monotonic()
            try:
                answer = work(tr)
                size_bytes = tr.get_approximate_size().wait()
            except engine_errors() as error:
                self._explain(error, hold, began_s)
                raise
            self._require_room(hold, size_bytes, began_s)
            return answer

        try:
            return run_once(self._database, self._root, body)
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
    "handed_off": "snoozed",
    "buried": "buried",
    "cancelled": "cancelled",
    "lease_lost": "lost",
}


class Telling:
    """Counts the attempts of a worker by outcome, and tells hooks, observers and the log of each."""

    def __init__(
        self, database: Database, hooks: Hooks, usual: Usual, timing: "Timing | None" = None
    ) -> None:
        """`timing`: that of queues with a chronicle; None for a worker without any."""
        self._runtime = database.runtime
        self._troubles = database.troubles
        self._hooks = hooks
        self._usual = usual
        self._timing = timing
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
        seconds = 0.0 if hold.began_at is None else self._runtime.monotonic() - hold.began_at
        with self._lock:
            self.tally = self.tally + Tally(**counted)
            if settled.name == "succeeded":
                self._usual.ran(hold.task.queue, hold.task, seconds)
        if self._timing is not None:
            self._timing.note(hold, seconds)
        with loggers.about(hold.task.queue, hold.task):
            if hold.watch is not None:
                hold.watch.end(settled.name, seconds, error)
            event = Event(settled.name, hold.task, seconds, error, settled.delay_s, settled.reason)
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


_log = logger("fdbqueue.worker")


def is_to_blame(unanswered_s: float, stood_still_s: float, lease_s: float) -> bool:
    """True if the database, not this process, lost a lease of `lease_s`.

    The database was silent for `unanswered_s`. This process was stalled for `stood_still_s` in all.

    1. A lease is renewed after a third of its length. If the database answers, the lease ends only if the
       process stalls for the other two thirds. A silence of a sixth is enough, as a question may come half a
       beat after its time.
    2. A process that was stalled for half of a silence may have missed the answer: then it is to blame.
    3. A silence shorter than limits.SILENCE_MIN_S is not recorded. If two thirds of the lease are shorter,
       only the stall counts.
    """
    is_too_short_to_tell = lease_s * 2 / 3 < limits.SILENCE_MIN_S
    was_silent = unanswered_s >= lease_s / 6 or is_too_short_to_tell
    return was_silent and stood_still_s <= min(lease_s, unanswered_s) / 2


class Pulse:
    """Measures the time for which this process was stalled. One thread does nothing but wake at fixed times.
    If it wakes late, the process was stopped or starved, or its machine slept. Without it, a stall could not
    be told from a wait for the database: in both, time passes.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended = runtime.event()
        self._beat_at = runtime.now()
        self._still = Spells()

    def start(self) -> None:
        self._beat_at = self._runtime.now()
        self._runtime.spawn(self._run, "fdbqueue-pulse")

    def end(self) -> None:
        self._ended.set()

    def stood_still_s(self, since: float) -> float:
        """Return the total time for which this process was stalled after `since`, by the wall clock."""
        # After a stall, the calling thread may wake before the thread of the pulse.
        return self._late_s() + self._still.total_s(since)

    def _run(self) -> None:
        try:
            while not self._ended.wait(limits.PULSE_S):
                if late_s := self._late_s():
                    self._still.add(self._runtime.now(), late_s)
                self._beat_at = self._runtime.now()
        except BaseException:
            # GreenletExit ends this thread. Without a successor the process would seem stalled.
            self._runtime.spawn(self._run, "fdbqueue-pulse")
            raise

    def _late_s(self) -> float:
        # By the wall clock, as leases end by it. The monotonic clock stops while a machine sleeps.
        late_s = self._runtime.now() - self._beat_at - limits.PULSE_S
        return late_s if late_s >= limits.LATE_MIN_S else 0.0


class Heartbeat:
    def __init__(
        self,
        database: Database,
        silence: Silence,
        timeout_s: float | None,
        overran: Callable[[Hold], None],
        chores: Callable[[], float],
        broke: Callable[[Exception], object],
    ) -> None:
        """`overran` is called with a hold when its handler has run for `timeout_s`; it must not block.
        `chores` does other periodic work, and returns the time of its next call, as runtime.monotonic().
        `broke` is called with an error of the database that does not heal in this process.
        """
        self._database = database
        self._runtime = database.runtime
        self._timeout_s = timeout_s
        self._overran = overran
        self._chores = chores
        self._broke = broke
        self._lock = database.runtime.lock()
        self._woken = database.runtime.event()
        self._wakes_at = float("-inf")
        self._ended = False
        self._holds: dict[int, Hold] = {}
        self._owed: dict[int, Hold] = {}
        self._overrun: list[Hold] = []
        self._pulse = Pulse(database.runtime)
        self._silence = silence

    def holds(self) -> list[Hold]:
        with self._lock:
            return list(self._holds.values())

    def look(self) -> list[Hold]:
        """The holds, for any thread: the lock of an event loop is for the fibers of that loop alone."""
        return list(self._holds.values())  # one step of the interpreter: no change falls into it

    def add(self, hold: Hold) -> None:
        with self._lock:
            self._holds[id(hold)] = hold
        if self._due_at(hold) < self._wakes_at:
            self.wake()

    def began(self, hold: Hold) -> None:
        hold.began_at, hold.thread_id = self._runtime.monotonic(), self._runtime.thread_id()
        if self._due_at(hold) < self._wakes_at:
            self.wake()

    def remove(self, hold: Hold) -> None:
        """Renew the lease no longer: the outcome is committed, or has failed to be."""
        with self._lock:
            self._holds.pop(id(hold), None)
        hold.settled = True

    def lose_all(self, session: Session) -> None:
        """Note that the session is over, and all its leases with it."""
        for hold in self.holds():
            if hold.session is session:
                self._found_over(hold)

    def _found_over(self, hold: Hold) -> None:
        hold.take_away()
        # The claimant of its outcome may have committed in time; if not, its verb raises NotTaken.
        if hold.open:
            self.lose(hold)

    def lose(self, hold: Hold) -> None:
        """Note that a lease ended before an outcome. If only the database is to blame, excuse the attempt."""
        hold.take_away()
        if hold.judged:
            return
        hold.judged = True
        since = hold.renewed_at - hold.session.ttr
        if is_to_blame(self._silence.longest_s(since), self._pulse.stood_still_s(since), hold.lease_s):
            self.owe(hold)

    def owe(self, hold: Hold) -> None:
        """Excuse the attempt as soon as the database answers: it must not count, whatever its outcome."""
        with self._lock:
            self._owed[id(hold)] = hold
        self.wake()

    def start(self) -> None:
        self._pulse.start()
        self._thread = self._runtime.spawn(self._run, "fdbqueue-heartbeat")

    def wake(self) -> None:
        self._woken.set()

    def end(self, timeout_s: float) -> None:
        self._ended = True
        self.wake()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._wakes_at = self._tick()
                self._woken.wait(max(0.0, self._wakes_at - self._runtime.monotonic()))
                self._woken.clear()
            until = self._runtime.monotonic() + limits.CLOSE_TIMEOUT_S
            try:
                while self._owed and self._runtime.monotonic() < until:
                    self._make_amends()
            except Exception as error:
                self._met(f"{len(self._owed)} attempts may count, although the database was away", error)
        except BaseException:
            self._go_on_in_another_thread()
            raise
        finally:
            self._silence.answered(self)  # this thread asks no more
        self._pulse.end()

    def _go_on_in_another_thread(self) -> None:
        """Start a successor, as an exception (GreenletExit) ends this thread and the leases need one."""
        if self._ended:
            return
        try:
            self._thread = self._runtime.spawn(self._run, "fdbqueue-heartbeat")
        except Exception as error:  # no thread can be started
            self._met("no thread can be started to renew leases: they are lost", error)
            for hold in self.holds():
                hold.session.lost = True
                hold.take_away()

    def _met(self, title: str, error: Exception) -> None:
        self._database.troubles.met(_log, title, error)

    def _tick(self) -> float:
        """Do the work that is due; return the time of the next tick."""
        try:
            try:
                self._beat()
                self._make_amends()
            finally:  # a stop must take effect also while the database is away
                self._silence.asked(self)  # chores may ask the database; leases wait meanwhile
                again = self._chores()
        except Exception as error:  # without this thread every lease would end
            if not is_away(error):
                self._silence.answered(self)
            self._met("the heartbeat failed; it is tried again", error)
            if not heals(error):
                self._broke(error)
            return self._runtime.monotonic() + limits.BEAT_AGAIN_S
        self._silence.answered(self)
        if self._owed:
            return self._runtime.monotonic()
        return min([again, *(self._due_at(hold) for hold in self.holds())])

    def _due_at(self, hold: Hold) -> float:
        beat_at = float("inf") if hold.lost else hold.beat_at
        if self._timeout_s is None or hold.began_at is None or not hold.open:
            return beat_at
        return min(beat_at, hold.began_at + self._timeout_s)

    def _beat(self) -> None:
        now = self._runtime.monotonic()
        due: dict[TaskQueue, list[Hold]] = defaultdict(list)
        for hold in self.holds():
            if self._is_over(hold, now) and hold.open and hold.claim(HEARTBEAT):
                self._overrun.append(hold)
            if hold.lost:
                self._found_over(hold)
            elif hold.beat_at <= now:
                due[hold.queue].append(hold)
        try:
            # First: the thread that takes over must not wait for the database.
            while self._overrun:
                self._overran(self._overrun[0])  # if no thread can be started, the next beat tries again
                self._overrun.pop(0)
        finally:
            for queue, holds in due.items():
                for start in range(0, len(holds), limits.VERB_BATCH):
                    self._renew_all(queue, holds[start : start + limits.VERB_BATCH])

    def _renew_all(self, queue: TaskQueue, holds: Sequence[Hold]) -> None:
        """Renew leases. If a batch fails, renew its halves apart: one bad lease must not end the others."""
        try:
            self._renew(queue, holds)
        except Exception as error:
            if is_away(error) or not heals(error):
                raise
            if len(holds) == 1:
                with about(holds[0].task.queue, holds[0].task):
                    self._met(f"the lease of task {holds[0].task.id} is not renewed", error)
                holds[0].beat_at = self._runtime.monotonic() + limits.BEAT_AGAIN_S
                return
            middle = len(holds) // 2
            self._renew_all(queue, holds[:middle])
            self._renew_all(queue, holds[middle:])

    def _is_over(self, hold: Hold, now: float) -> bool:
        return (
            self._timeout_s is not None
            and hold.began_at is not None
            and hold.began_at + self._timeout_s <= now
        )

    def _renew(self, queue: TaskQueue, holds: Sequence[Hold]) -> None:
        asked_at = self._runtime.now()
        tasks = [hold.task for hold in holds]
        try:
            held = self._ask(lambda tr: queue.renew(tr, tasks))
        except QueueNotFound:
            held = Renewed({})
        for hold in holds:
            if hold.task.id in held:
                hold.renewed(held[hold.task.id], asked_at)
                if hold.task.id in held.cancelled:
                    hold.note_cancel()
            elif hold.open and hold.ended_by is None:
                self.lose(hold)
            else:  # its handler ended the lease, and still runs
                hold.beat_at = float("inf")

    def _make_amends(self) -> None:
        """Excuse a few attempts between renewals; the rest later, if the database is away."""
        for key, hold in list(self._owed.items())[: limits.AMENDS_PER_BEAT]:
            with self._lock:
                del self._owed[key]
            try:
                self._excuse(hold)
            except Exception as error:
                if is_away(error):
                    with self._lock:
                        self._owed[key] = hold
                    raise
                title = f"task {hold.task.id}: its attempt counts, although the database was away"
                with about(hold.task.queue, hold.task):
                    self._met(title, error)

    def _excuse(self, hold: Hold) -> None:
        with suppress(QueueNotFound):
            # To excuse an attempt twice has the effect of once, so the call needs no receipt.
            if self._ask(partial(hold.queue.excuse, task=hold.task)):
                with about(hold.task.queue, hold.task):
                    _log.debug("task %s: its attempt does not count, the database was away", hold.task.id)

    def _ask(self, body: Callable[[Transaction], T]) -> T:
        question = partial(run, self._database.at("liveness"), body, timeout_s=limits.CLOSE_TIMEOUT_S)
        return self._silence.ask(self, question)
