"""A task that a worker holds: HeldTask, which the handler sees, and Hold, which the worker keeps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar, overload

from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument, LeaseLost, TaskCancelled
from fdbqueue.core.observing import Watch
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.fleet.outcomes import Bury, Done, Effect, Snooze
from fdbqueue.tasks.queue import TaskQueue

T = TypeVar("T")

BEATS_PER_LEASE = 3


class Hold:
    """A lease of this worker. The first thread that claims it decides the outcome; no other thread does."""

    in_batch = False
    """True for a worker with `batch`."""

    def __init__(
        self,
        queue: TaskQueue,
        task: Task,
        database: Database,
        session: Session,
        asked_at: float,
        transactional: bool = False,
    ) -> None:
        """`asked_at`: wall-clock time at which the take began. `transactional`: as in WorkerOptions."""
        self.queue = queue
        self.session = session
        self.decision: BaseException | None = None
        """The decision of the handler of a batch about this task."""
        self.began_at: float | None = None
        """Time at which the handler was called, as runtime.monotonic()."""
        self.thread_id = 0
        self.watch: Watch | None = None
        """The observers of its attempt, if there are any."""
        self.settled = False
        """True after the commit of its outcome: nothing of the attempt is under way."""
        self.judged = False
        """True if the worker has judged whether the database ended this lease."""
        self.database = database
        self._runtime = database.runtime
        self._held_until(task.until, asked_at)
        self._lock = database.runtime.lock()
        self._claimant: object = None
        self.interrupt: Callable[[], object] | None = None
        """Ends the handler, when the lease is taken away or the task cancelled; None for one in a thread."""
        self._taken_away = False
        self.cancelled = task.cancel_asked is not None
        """True if the task was cancelled, and this process knows it."""
        self.fraction: float | None = None
        """The progress that the handler has told."""
        self.transactional = transactional
        self.ended_by: str | None = None
        """The verb with which the handler itself ended the lease."""
        self.ended_within = False
        """True if it did so in a transaction, which may not have committed."""
        self.lease = task
        """The task as taken: verbs of the worker use it, so they are not noted as the handler's."""
        self.task = HeldTask.of(task, queue.name, self)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker lives in one process: in another one, the task is a lease without a worker.
        return type(None), ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hold":
        return self

    def claim(self, claimant: object) -> bool:
        """True if `claimant` decides the outcome, as it was the first to claim this hold."""
        with self._lock:
            if self._claimant is None:
                self._claimant = claimant
            return self._claimant is claimant

    def disclaim(self, claimant: object) -> None:
        """Take the claim of `claimant` back, if it has one: it has not decided the outcome after all."""
        with self._lock:
            if self._claimant is claimant:
                self._claimant = None

    def note_end(self, verb: str | None, within: bool) -> None:
        """A verb has ended the lease, perhaps `within` a transaction; None: no verb has."""
        self.ended_by, self.ended_within = verb, within

    def undo_end(self) -> None:
        if self.ended_within:
            self.ended_by = None

    @property
    def claimant(self) -> object:
        """The claimant that decides the outcome; None before the first claim."""
        return self._claimant

    @property
    def open(self) -> bool:
        """True if the outcome is not claimed yet."""
        return self.claimant is None

    @property
    def lost(self) -> bool:
        return self._taken_away or (self._ends is not None and self._ends <= self._runtime.now())

    def take_away(self) -> None:
        self._taken_away = True
        if self.interrupt is not None:
            self.interrupt()

    def note_cancel(self) -> None:
        """Note that the task was cancelled. A coroutine hears of it once, and may end its work."""
        is_news, self.cancelled = not self.cancelled, True
        if is_news and self.interrupt is not None:
            self.interrupt()

    def renewed(self, until: float | None, asked_at: float) -> None:
        """Note that a call renewed the lease. It began at `asked_at`, by the wall clock."""
        self._held_until(until, asked_at)

    def _held_until(self, until: float | None, asked_at: float) -> None:
        self.renewed_at = asked_at
        """Wall-clock time at which the take, or the last renewal, began."""
        self._ends = until  # by the wall clock, as the queue judges it
        # A lease without an end is renewed as often as its session.
        ttr_s = self.session.ttr
        lasts_s = ttr_s if until is None else max(0.0, until - self._runtime.now())
        self.lease_s = min(lasts_s, ttr_s)
        """Length of the lease without a renewal; 0 if it was over when the take returned."""
        self.beat_at = self._runtime.monotonic() + lasts_s / BEATS_PER_LEASE
        """Time of the next renewal, as runtime.monotonic()."""


@dataclass(frozen=True, slots=True)
class HeldTask(Task):
    """The task that a worker passes to its handler; usable wherever a Task is."""

    queue: str = ""
    """The name of its queue."""
    hold: Hold | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, task: Task, queue: str, hold: Hold) -> Self:
        known = {name: getattr(task, name) for name in _TASK_FIELDS}
        return cls(**known, queue=queue, hold=hold)

    @property
    def database(self) -> Database:
        """The open database of the worker, for reads and writes of the handler. To close it does nothing.

        Raises InvalidArgument for a task that no worker passed to a handler.
        """
        return self._held().database.lent()

    def _held(self) -> Hold:
        if self.hold is None:
            raise InvalidArgument(name="task", wanted="a task that a worker passed to a handler", got=self)
        return self.hold

    def progress(self, fraction: float) -> None:
        """Tell the progress, from 0 to 1: listings show it, and `TaskQueue.wait_for_progress` waits for it.

        Each call is one transaction. It also learns of a cancel, for `cancelled` and `check`.
        Writes: the task.
        Raises: NotTaken if the lease is over; InvalidArgument for another number, and in a transactional
        worker: the write would make the transaction of the ack conflict, and begin again.
        """
        hold = self._held()
        if hold.transactional:
            wanted = "False for a handler that tells its progress"
            raise InvalidArgument(name="transactional", wanted=wanted, got=True)
        told = hold.queue.progress(hold.database, hold.lease, fraction)
        hold.fraction = told.fraction
        if told.cancel_asked is not None:
            hold.note_cancel()

    @overload
    def step(self, name: str, function: Callable[[], T], /) -> T: ...
    @overload
    def step(self, tr: Any, name: str, function: Callable[[Any], T], /) -> T: ...
    def step(self, *given: Any) -> Any:
        """The result of a step of the work: a step that an earlier attempt has done is not run again.

        `step("charge", function)` runs `function()`, and stores its result under this lease.
        `step(tr, "charge", function)` runs `function(tr)` in a transaction, which stores the result with its
        effect. Both return the stored result, if the step is done (`TaskQueue.step`).
        Raises: as TaskQueue.step; InvalidArgument for other arguments, and for a step without its transaction
        in a transactional worker: the write would make the transaction of the ack conflict, and begin again.
        """
        tr, name, function = step_arguments(given)
        hold = self._held()
        if tr is None and hold.transactional:
            wanted = "False for a handler with steps outside its transaction; `task.step(tr, ...)` is in it"
            raise InvalidArgument(name="transactional", wanted=wanted, got=True)
        return hold.queue.step(hold.database if tr is None else tr, hold.lease, name, function)

    def done(self, result: Any = None, *, effect: Effect | None = None) -> None:
        """Decide about this task of a batch: an ack, as for `raise Done(effect, result)`."""
        self._decide(Done(effect, result))

    def fail(self, error: BaseException) -> None:
        """Decide about this task of a batch: its attempt has failed, as if a handler had raised the error."""
        if not isinstance(error, BaseException) or isinstance(error, Done):
            raise InvalidArgument(name="error", wanted="an error, or a Retry", got=error)
        self._decide(error)

    def snooze(self, delay: float, reason: str = "") -> None:
        """Decide about this task of a batch: it is put off, as for `raise Snooze(delay)`."""
        self._decide(Snooze(delay, reason))

    def bury(self, reason: str = "", detail: str = "") -> None:
        """Decide about this task of a batch: it is buried, as for `raise Bury(reason)`."""
        self._decide(Bury(reason, detail))

    def _decide(self, verdict: BaseException) -> None:
        """The last decision counts. It is committed when the handler has ended."""
        hold = self._held()
        if not hold.in_batch:
            wanted = "given for a decision about one of several tasks (a handler of one task raises it)"
            raise InvalidArgument(name="batch", wanted=wanted, got=None)
        hold.decision = verdict

    @property
    def lost(self) -> bool:
        """True if the lease is over: another worker may take the task, and this one cannot ack it."""
        return self.hold is not None and self.hold.lost

    @property
    def cancelled(self) -> bool:
        """True if the task was cancelled: its handler should end. A heartbeat of the worker learns of it."""
        return self.hold is not None and self.hold.cancelled

    def _note_end(self, verb: str | None, within: bool) -> None:
        if self.hold is not None:
            self.hold.note_end(verb, within)

    def check(self) -> None:
        """Raises LeaseLost if the lease is over, TaskCancelled if the task was cancelled.

        Handlers that run for long call it now and then, and leave the error to the worker.
        """
        if self.lost:
            raise LeaseLost(id=self.id)
        if self.cancelled:
            raise TaskCancelled(id=self.id)


def step_arguments(given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Parse the arguments of a step: transaction or None, name and function. Raises InvalidArgument."""
    if len(given) not in (_NAME_AND_FUNCTION, _NAME_AND_FUNCTION + 1):
        raise InvalidArgument(name="step", wanted="called with [tr,] name, function", got=tuple(given))
    return (None, *given) if len(given) == _NAME_AND_FUNCTION else tuple(given)


_NAME_AND_FUNCTION = 2
_TASK_FIELDS = tuple(field.name for field in fields(Task))
