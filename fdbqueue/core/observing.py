"""Observers: objects of this process that are told of its calls, attempts and transactions.

`prometheus` and `opentelemetry` in fdbqueue.integrations are observers. Each belongs to the whole process,
as the registry of metrics and the tracer do: a worker process opens its database itself, after the import of
its handler.

A part of the library that can be observed looks at `observers` first. While it is empty, nothing more
happens: no Python call, no object, no key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fdbqueue.core.logger import Troubles, logger
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.core.task import Task
from fdbqueue.core.visible import SURVIVED

GIVEN_BACK = "given_back"
"""The outcome of an attempt that had not ended when its worker had to stop."""

_log = logger("fdbqueue")
_troubles = Troubles(RealRuntime())
_changing = RealRuntime.lock()


class Call:
    """One call on a queue: a context manager around it, which times it and tells the observers.

    An observer may read it at the begin of the call and at its end.
    """

    __slots__ = (
        "_began",
        "_ends",
        "_runtime",
        "count",
        "error",
        "name",
        "queue",
        "seconds",
        "stores_trace",
        "task_id",
        "tasks",
        "trace",
        "waits",
        "within",
    )

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        queue: str,
        task_id: str = "",
        *,
        within: bool = False,
        waits: bool = False,
        count: int = 1,
        stores_trace: bool = False,
    ) -> None:
        self.name = name
        """The verb: "put", "take", "ack", "enqueue", ..."""
        self.queue = queue
        """The name of the queue; empty for a queue over a subspace."""
        self.within = within
        """True if the call is part of its caller's transaction, which may still fail to commit."""
        self.waits = waits
        """True if the call may wait for a task, or for room."""
        self.count = count
        """Number of tasks or items: of a put, those to be put; of a take, those that it took, at its end."""
        self.task_id = task_id
        """The task of a call about one task."""
        self.tasks: Sequence[Task] = ()
        """At the end of the call: the tasks that it put, took or ended."""
        self.stores_trace = stores_trace
        """True if the call stores a trace context with its tasks."""
        self.trace = b""
        """That trace context (tasks/stored/records.py); an observer sets it when the call begins."""
        self.seconds = 0.0
        """At its end: its duration."""
        self.error: BaseException | None = None
        """At its end: the error that it raises."""
        self._runtime = runtime
        self._ends: list[Ended] = []

    def __enter__(self) -> Self:
        for observer in observers:
            try:
                ended = observer.call(self)
            except SURVIVED as error:
                _met(observer, error)
            else:
                if ended is not None:
                    self._ends.append(ended)
        self._began = self._runtime.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.seconds = self._runtime.monotonic() - self._began
        self.error = error
        for ended in reversed(self._ends):
            try:
                ended(self)
            except SURVIVED as failure:
                _met(ended, failure)


Ended = Callable[[Call], None]
"""An observer's function for the end of a call."""


@dataclass(slots=True)
class Attempt:
    """One attempt of a worker at a task."""

    queue: str
    task: Task
    outcome: str = ""
    """At its end: "succeeded", "retried", "snoozed", "handed_off", "buried", "cancelled", "lease_lost", or
    GIVEN_BACK.
    """
    seconds: float = 0.0
    """At its end: the run time of the handler."""
    error: BaseException | None = None
    """At its end: the error that the handler raised."""

    @property
    def wait_s(self) -> float | None:
        """Time from the put of the task, its delay included, to the take; None if an earlier attempt began.

        A record has no time of the last release, so the waits of later attempts are unknown.
        """
        task = self.task
        if task.taken is None or task.attempts != 1:
            return None
        return max(0.0, task.taken - task.created)


class Watcher:
    """An observer's view of one attempt. A subclass overrides the methods that it needs."""

    def ended(self, attempt: Attempt) -> None:
        """The attempt has its outcome. Any thread may call this."""

    def left(self) -> None:
        """The thread that began the attempt goes on with something else."""


class Observer:
    """A subclass overrides the methods that it needs. Their errors are logged, and change nothing."""

    def call(self, call: Call) -> Ended | None:  # noqa: ARG002
        """A call begins. Returns the function for its end."""
        return None

    def attempt(self, attempt: Attempt) -> Watcher | None:  # noqa: ARG002
        """An attempt begins, in the thread of the handler."""
        return None

    def committed(self) -> None:
        """A transaction of `transactional`, or of a call given a database, has committed."""

    def failed(self, code: int) -> None:
        """Such a transaction has ended in the engine's error `code`; it is retried, or given up."""

    def fell_back(self) -> None:
        """Such a transaction goes on at default priority, as batch priority starves."""


observers: tuple[Observer, ...] = ()
"""The observers of this process."""


class Observation:
    """An observer at work; a context manager that ends it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def end(self) -> None:
        """Tell the observer nothing more, except the ends of calls that have begun. Twice is once."""
        global observers
        with _changing:
            observers = tuple(one for one in observers if one != self._observer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def observe(observer: Observer) -> Observation:
    """Tell `observer` of everything that begins from now on, in every thread of this process.

    An observer that is at work already is not told twice.
    """
    global observers
    with _changing:
        if observer not in observers:
            observers = (*observers, observer)
    return Observation(observer)


class Watch:
    """The watchers of one attempt of a worker."""

    def __init__(self, attempt: Attempt) -> None:
        """The attempt begins."""
        self._attempt = attempt
        self._watchers: list[Watcher] = []
        for observer in observers:
            try:
                watcher = observer.attempt(attempt)
            except SURVIVED as error:
                _met(observer, error)
            else:
                if watcher is not None:
                    self._watchers.append(watcher)

    def end(self, outcome: str, seconds: float, error: BaseException | None) -> None:
        """The attempt has its outcome."""
        attempt = self._attempt
        attempt.outcome, attempt.seconds, attempt.error = outcome, seconds, error
        for watcher in reversed(self._watchers):
            try:
                watcher.ended(attempt)
            except SURVIVED as failure:
                _met(watcher, failure)

    def left(self) -> None:
        """The thread that began it goes on with something else."""
        for watcher in reversed(self._watchers):
            try:
                watcher.left()
            except SURVIVED as error:
                _met(watcher, error)


def tell_committed() -> None:
    for observer in observers:
        try:
            observer.committed()
        except SURVIVED as error:
            _met(observer, error)


def tell_failed(code: int) -> None:
    """Tell the observers of a transaction that ended in the engine's error `code`."""
    for observer in observers:
        try:
            observer.failed(code)
        except SURVIVED as error:
            _met(observer, error)


def tell_fell_back() -> None:
    for observer in observers:
        try:
            observer.fell_back()
        except SURVIVED as error:
            _met(observer, error)


def _met(observer: object, error: BaseException) -> None:
    at_fault = getattr(observer, "__self__", observer)
    _troubles.met(_log, f"an observer, {type(at_fault).__name__}, has failed", error)


NOT_COMMITTED = 1020
"""The code of a conflict."""
MAYBE_COMMITTED = frozenset({1021, 1039})


@dataclass
class Counters:
    """Counters of the calls given one database, for monitoring and load tests (`Database.counters`).

    They are sums of one process since it opened the database. There are none per queue or call, because
    threads share transactions (calls.py). Every call counts, without a lock: of two increments at the
    same moment, one may be lost.
    """

    conflicts: int = 0
    """Commits refused because another transaction had changed a key that they read (1020)."""
    retries: int = 0
    """Transactions that ended in an error of the engine, conflicts included, and were retried or given up."""
    unknown: int = 0
    """Commits with an unknown result (1021, 1039)."""
    requests: int = 0
    """Requests registered in a line, each by the callers of one process together."""
    wake_ups: int = 0
    """Sleeps in a line that a watch has ended, not the clock."""
    commits: int = 0
    """Transactions that have committed, also those that wrote nothing."""
    batch: int = 0
    """Attempts of transactions that have begun at batch priority."""
    fallbacks: int = 0
    """Those among them that went on at default priority, as the cluster gave them no read version."""

    def note_fallback(self) -> None:
        self.fallbacks += 1
        if observers:
            tell_fell_back()

    def note_error(self, code: int) -> None:
        self.retries += 1
        self.conflicts += code == NOT_COMMITTED
        self.unknown += code in MAYBE_COMMITTED
        if observers:
            tell_failed(code)
