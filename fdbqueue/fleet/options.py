"""The options of a worker: WorkerOptions, one value from `Worker` or `Fleet` to the worker process; and its
hooks.

Its queues have weights; they are given by name, as handles, or as a mapping.

The events of a worker call the user's hooks, and are written to the logger "fdbqueue.worker". No handler of
that logger is configured here: programs configure logs.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, Unpack

from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    checked_count,
    checked_function,
    checked_items,
    checked_seconds,
    checked_span,
    checked_whole,
    require_finished,
)
from fdbqueue.core.database import as_database
from fdbqueue.core.errors import InvalidArgument, TaskCancelled
from fdbqueue.core.logger import Troubles, logger
from fdbqueue.core.registry import checked_name
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.visible import SURVIVED, text_of
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Verdict
from fdbqueue.tasks.attempts import Asked
from fdbqueue.tasks.options import Backoff, checked_backoff, given_attempts, stored_attempts
from fdbqueue.tasks.queue import TaskQueue

_log = logger("fdbqueue.worker")


@dataclass(frozen=True, slots=True)
class Event:
    """The start or the outcome of an attempt. An outcome is reported after its commit."""

    name: str
    """"started", "succeeded", "retried", "snoozed", "handed_off", "buried", "cancelled" or "lease_lost"."""
    task: HeldTask
    seconds: float = 0.0
    """Run time of the handler."""
    error: BaseException | None = field(default=None, compare=False)
    """The error that the handler raised."""
    delay_s: float = 0.0
    """Delay before the next attempt, if the task was retried or snoozed."""
    reason: str = ""
    """The reason of an outcome without a call of the handler."""

    def __str__(self) -> str:
        what = f"task {self.task.id} of {self.task.queue}: {self.name.replace('_', ' ')}"
        after = f" after {self.seconds:.3f} s" if self.seconds else ""
        again = f", again in {self.delay_s:.1f} s" if self.delay_s else ""
        why = self.reason if self.error is None else f"{type(self.error).__name__}: {text_of(self.error)}"
        return f"{what}{after}{again}{': ' if why else ''}{why}"


Hook = Callable[[Event], object]

_LEVELS = {
    "started": logging.DEBUG,
    "succeeded": logging.DEBUG,
    "snoozed": logging.INFO,
    "handed_off": logging.INFO,
    "retried": logging.WARNING,
    "buried": logging.ERROR,
    "cancelled": logging.INFO,
    "lease_lost": logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that a worker calls with an Event, in the thread of the handler. Their errors are logged, and
    change nothing.
    """

    started: Hook | None = None
    succeeded: Hook | None = None
    retried: Hook | None = None
    snoozed: Hook | None = None
    buried: Hook | None = None
    lease_lost: Hook | None = None
    cancelled: Hook | None = None
    handed_off: Hook | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            hook = getattr(self, each.name)
            if hook is not None:
                checked_function(f"hook {each.name}", hook)

    def tell(self, event: Event, troubles: Troubles) -> None:
        """Log the event, and call its hook. Errors of hooks and log handlers are logged, not raised."""
        try:
            unexpected = event.error is not None and not isinstance(event.error, Verdict | TaskCancelled)
            level = max(_LEVELS[event.name], logging.WARNING if unexpected else logging.NOTSET)
            if _log.isEnabledFor(level):
                _log.log(level, "%s", event)
        except SURVIVED as error:
            troubles.met(_log, "a log handler failed", error)
        hook: Hook | None = getattr(self, event.name)
        if hook is not None:
            try:
                require_finished(f"hook {event.name}", hook(event))
            except SURVIVED as error:
                troubles.met(_log, f"the hook {event.name!r} failed", error)


def checked_hooks(hooks: Any) -> Hooks:
    if not isinstance(hooks, Hooks):
        raise InvalidArgument(name="hooks", wanted="fdbqueue.Hooks", got=hooks)
    return hooks


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `Worker` and `Fleet` that become WorkerOptions, which documents them."""

    threads: int
    concurrency: int
    transactional: bool
    attempts: float | None
    backoff: Backoff | None
    timeout_s: float | None
    grace_s: float
    session_ttr_s: float
    overtake: int
    batch: int | None
    batch_wait_s: float | None


@dataclass(frozen=True)
class WorkerOptions:
    threads: int = 8
    """Number of blocking handlers that run at the same time."""
    concurrency: int = 100
    """Number of coroutine functions that run at the same time, if the handler is one."""
    transactional: bool = False
    """True if the handler is called as `handler(tr, task)`, in the transaction of the ack."""
    attempts: int | None = None
    """Number of failed attempts after which a task is buried, inf for no bound, unless its put or its queue
    has one. None is 5. It is stored as NO_BOUND in place of inf, which JSON cannot carry.
    """
    backoff: Backoff | None = None
    """Delay of a failed task before its next attempt, unless its put or its queue has one. None is
    Backoff().
    """
    timeout_s: float | None = None
    """Run time after which an attempt has failed. Its thread is given up, and another takes its place."""
    grace_s: float = 30.0
    """Time that running handlers have after `stop`, before their tasks are given back."""
    session_ttr_s: float = limits.SESSION_TTR_S
    """Time from the death of the process until its tasks are ready again, if their own ttr is longer."""
    overtake: int = limits.WORKER_OVERTAKE
    """Number of older ready tasks that a take may leave behind. It has no meaning for queues
    with task keys or limits of tasks, nor for bags."""
    batch: int | None = None
    """The largest number of tasks of one call of the handler, which gets a list of them. Then `threads` and
    `concurrency` are numbers of batches. At most limits.VERB_BATCH."""
    batch_wait_s: float | None = None
    """Time that a batch waits after its first task for more; None for limits.BATCH_WAIT_S."""

    @property
    def places(self) -> int:
        """Enough for the tasks of the handlers of either sort that run at the same time."""
        return max(self.threads, self.concurrency) * (self.batch or 1)

    @property
    def asked(self) -> Asked:
        return Asked(given_attempts(self.attempts), self.backoff)

    def keywords(self) -> dict[str, Any]:
        """The options as a caller gives them."""
        return {**vars(self), "attempts": given_attempts(self.attempts)}

    @classmethod
    def checked(cls, **given: Unpack[WorkerKeywords]) -> "WorkerOptions":
        """Raises InvalidArgument."""
        plain: dict[str, Any] = {**given}
        if plain.get("attempts") is not None:
            plain["attempts"] = stored_attempts("attempts", plain["attempts"])
        options = cls(**plain)
        timeout_s, backoff = options.timeout_s, options.backoff
        batch, wait_s = options.batch, options.batch_wait_s
        if batch is None and wait_s is not None:
            raise InvalidArgument(name="batch_wait_s", wanted="None without `batch`", got=wait_s)
        return cls(
            threads=checked_count("threads", options.threads, limits.THREADS_MAX),
            concurrency=checked_count("concurrency", options.concurrency, limits.CONCURRENCY_MAX),
            transactional=bool(options.transactional),
            attempts=options.attempts,
            backoff=None if backoff is None else checked_backoff("backoff", backoff),
            timeout_s=None if timeout_s is None else checked_span("timeout_s", timeout_s),
            grace_s=checked_seconds("grace_s", options.grace_s),
            session_ttr_s=checked_span("session_ttr_s", options.session_ttr_s),
            overtake=checked_whole("overtake", options.overtake, 0, limits.OVERTAKE_MAX),
            batch=None if batch is None else checked_count("batch", batch, limits.VERB_BATCH),
            batch_wait_s=None if wait_s is None else checked_seconds("batch_wait_s", wait_s),
        )


Queues = str | TaskQueue | Iterable[str | TaskQueue] | Mapping[str, int]


def opened(db: AnyDatabase, queues: Queues, root: Any) -> list[tuple[TaskQueue, int]]:
    database = as_database(db)
    return [
        (
            queue._on(database) if isinstance(queue, TaskQueue) else TaskQueue.open(db, queue, root=root),
            weight,
        )
        for queue, weight in _weights_of(queues).items()
    ]


def names_of(queues: Queues) -> dict[str, int]:
    """Return the name and the weight of each queue, for a process that opens them. Raises InvalidArgument."""
    return {
        queue.name if isinstance(queue, TaskQueue) else queue: weight
        for queue, weight in _weights_of(queues).items()
    }


def _weights_of(queues: Any) -> dict[Any, int]:
    if isinstance(queues, str | TaskQueue):
        queues = [queues]
    names = checked_items("queues", [*queues] if isinstance(queues, Mapping) else queues)
    for queue in names:
        if not isinstance(queue, TaskQueue):
            checked_name(queue)
    weights = {queue: queues[queue] if isinstance(queues, Mapping) else 1 for queue in names}
    if not weights:
        raise InvalidArgument(name="queues", wanted="one queue or more", got=queues)
    for weight in weights.values():
        checked_count("weight", weight, limits.WEIGHT_MAX)
    return weights
