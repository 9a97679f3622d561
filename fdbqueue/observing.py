"""Observers: objects of this process that are told of its calls, attempts and transactions.

fdbqueue.metrics and fdbqueue.tracing are observers. Each belongs to the whole process, as the registry of
metrics and the tracer do: a worker process opens its database itself, after the import of its handler.

A part of the library that can be observed looks at `observers` first. While it is empty, nothing more
happens: no Python call, no object, no key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from fdbqueue.logger import logger
from fdbqueue.runtime import RealRuntime, Runtime
from fdbqueue.task import Task
from fdbqueue.trouble import SURVIVED, Troubles

S = TypeVar("S", "Call", "Attempt")

GIVEN_BACK = "given_back"
"""The outcome of an attempt that had not ended when its worker had to stop."""

_log = logger("fdbqueue")
_troubles = Troubles(RealRuntime())


@dataclass(slots=True)
class Call:
    """One call on a queue. An observer may read it at the begin of the call and at its end."""

    name: str
    """The verb: "put", "take", "ack", "enqueue", ..."""
    queue: str
    """The name of the queue; empty for a queue over a subspace."""
    within: bool
    """True if the call is part of its caller's transaction, which may still fail to commit."""
    waits: bool = False
    """True if the call may wait for a task, or for room."""
    count: int = 1
    """Number of tasks or items: of a put, those to be put; of a take, those that it took, at its end."""
    task_id: str = ""
    """The task of a call about one task."""
    tasks: Sequence[Task] = ()
    """At the end of the call: the tasks that it put, took or ended."""
    trace: bytes = b""
    """The trace context to be stored with the tasks of a put (trace_context.py); an observer sets it."""
    began_us: int = 0
    """Wall-clock time of its begin, in microseconds."""
    seconds: float = 0.0
    """At its end: its duration."""
    error: BaseException | None = None
    """At its end: the error that it raises."""


@dataclass(slots=True)
class Attempt:
    """One attempt of a worker at a task."""

    queue: str
    task: Task
    outcome: str = ""
    """At its end: "succeeded", "retried", "snoozed", "buried", "cancelled", "lease_lost", or GIVEN_BACK.
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


class Watcher(Generic[S]):
    """An observer's view of one call or attempt. A subclass overrides the methods that it needs."""

    def ended(self, seen: S) -> None:
        """The call or attempt has ended. For an attempt, any thread may call this."""

    def left(self) -> None:
        """The thread that began it goes on with something else."""


class Observer:
    """A subclass overrides the methods that it needs. Their errors are logged, and change nothing."""

    def call(self, call: Call) -> Watcher[Call] | None:  # noqa: ARG002
        """A call begins."""
        return None

    def attempt(self, attempt: Attempt) -> Watcher[Attempt] | None:  # noqa: ARG002
        """An attempt begins, in the thread of the handler."""
        return None

    def committed(self) -> None:
        """A transaction of `transactional`, or of a call given a database, has committed."""

    def failed(self, code: int) -> None:
        """Such a transaction has ended in the engine's error `code`; it is retried, or given up."""


observers: tuple[Observer, ...] = ()
"""The observers of this process."""


class Observation:
    """An observer at work; a context manager that ends it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def end(self) -> None:
        """Tell the observer nothing more, except the ends of calls that have begun. Twice is once."""
        global observers
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
    if observer not in observers:
        observers = (*observers, observer)
    return Observation(observer)


class Watch(Generic[S]):
    """The watchers of one call or attempt."""

    seen: S

    def __init__(self, seen: S, begin: Callable[[Observer, S], Watcher[S] | None]) -> None:
        self.seen = seen
        self._watchers: list[Watcher[S]] = []
        for observer in observers:
            try:
                watcher = begin(observer, seen)
            except SURVIVED as error:
                _met(observer, error)
            else:
                if watcher is not None:
                    self._watchers.append(watcher)

    def ended(self) -> None:
        for watcher in reversed(self._watchers):
            try:
                watcher.ended(self.seen)
            except SURVIVED as error:
                _met(watcher, error)

    def left(self) -> None:
        for watcher in reversed(self._watchers):
            try:
                watcher.left()
            except SURVIVED as error:
                _met(watcher, error)


class CallWatch(Watch[Call]):
    """A context manager around one call, which it times."""

    def __init__(self, call: Call, runtime: Runtime) -> None:
        self._runtime = runtime
        call.began_us = runtime.now_us()
        super().__init__(call, _begin_call)
        self._began = runtime.monotonic()

    def __enter__(self) -> Call:
        return self.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.seen.seconds = self._runtime.monotonic() - self._began
        self.seen.error = error
        self.ended()
        self.left()


class AttemptWatch(Watch[Attempt]):
    """The attempt of a worker: its end may be told by another thread than its begin."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt, _begin_attempt)

    def end(self, outcome: str, seconds: float, error: BaseException | None) -> None:
        self.seen.outcome, self.seen.seconds, self.seen.error = outcome, seconds, error
        self.ended()


def tell_committed() -> None:
    """Tell the observers of a commit."""
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


def _begin_call(observer: Observer, call: Call) -> Watcher[Call] | None:
    return observer.call(call)


def _begin_attempt(observer: Observer, attempt: Attempt) -> Watcher[Attempt] | None:
    return observer.attempt(attempt)


def _met(observer: object, error: BaseException) -> None:
    _troubles.met(_log, f"an observer, {type(observer).__name__}, has failed", error)
