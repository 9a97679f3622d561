"""Outcomes: the meaning of the end of a handler for its task. settling.py commits it.

The handler ...                      The task is ...
returned, or raised Done             acked, with the result, if the task was asked for one
raised Retry                         released with its delay, or the backoff; the attempt failed
raised Snooze                        released with its delay; the attempt does not count
raised Bury                          buried; the attempt failed
raised Handoff                       handed off: it waits for the outside
raised any other error               released with the backoff; the attempt failed
had a result that the codec of the   released with the backoff; the attempt failed
queue cannot carry, or a larger one
returned a coroutine, an awaitable   released with the backoff; the attempt failed, as its body did not run
or a generator
failed for the last time             buried, with its failures
lost its lease                       left alone: another worker may have it
raised TaskCancelled, as it was      ended; the attempt does not count
cancelled
met a database that is away,         released; the attempt does not count
or raised Unavailable
"""

import copyreg
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType, TracebackType
from typing import Any

from fdbqueue import tasks as late
from fdbqueue.core.arguments import checked_delay, checked_function, require_finished
from fdbqueue.core.database import is_away as is_database_away
from fdbqueue.core.errors import (
    DatabaseClosed,
    FdbQueueError,
    LeaseLost,
    NotTaken,
    TaskCancelled,
    VerdictReturned,
)
from fdbqueue.core.logger import traceback_of
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.task import Failure
from fdbqueue.core.visible import SURVIVED, text_of
from fdbqueue.tasks.options import Backoff as Backoff

Effect = Callable[[Any], object]


class Verdict(Exception):
    """Raised by a handler to choose the outcome of its attempt."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception calls the class with the message, which is not the first argument of each verdict.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class Retry(Verdict):
    """Raised by a handler to fail the attempt. The next one begins after `delay` seconds, or the backoff."""

    def __init__(self, delay: float | None = None, reason: str = "", detail: str = "") -> None:
        self.delay = None if delay is None else checked_delay(delay)
        self.reason = reason
        self.detail = detail
        super().__init__(reason)


class Snooze(Verdict):
    """Raised by a handler to put the task off for `delay` seconds, without a failure.

    Meant for rate limits, and for tasks that come too early.
    """

    def __init__(self, delay: float, reason: str = "") -> None:
        """A negative delay counts as 0. Raises InvalidArgument."""
        self.delay = checked_delay(delay)
        self.reason = reason
        super().__init__(reason)


class Bury(Verdict):
    """Raised by a handler to bury the task, whatever number of attempts it has left."""

    def __init__(self, reason: str = "", detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason)


class Handoff(Verdict):
    """Raised by a handler to leave the task to the outside: `TaskQueue.complete` or `fail` ends it.

    Meant for a payment callback, a human's yes, a job on another system. The task stays taken meanwhile. If
    nobody calls within `ttl` seconds, the attempt has failed. `for_` is a text for people, as in
    `TaskQueue.hand_off`.
    """

    def __init__(self, ttl: float, for_: str | None = None) -> None:
        """Raises InvalidArgument."""
        late.handing.checked_handed(ttl, for_)
        self.ttl = ttl
        self.for_ = for_
        super().__init__(for_ or "")


class Done(Verdict):
    """Raised by a handler to ack the task. `effect(tr)` runs in the transaction of the ack.

    That transaction may be tried several times, and commits once. If the lease was lost, it does not commit.
    `result` is stored as if the handler had returned it.
    """

    def __init__(self, effect: Effect | None = None, result: object = None) -> None:
        """Raises InvalidArgument, DeferredBody."""
        self.effect = None if effect is None else checked_function("effect", effect)
        self.result = result
        super().__init__()


class Unavailable(Exception):
    """Raised by a handler if something that every task needs is away, such as a server of another program.

    The task is put off, and the attempt does not count. The worker takes no task for a pause, which doubles
    each time.
    """


@dataclass(frozen=True)
class Failed:
    """The attempt failed. `delay_s` is the delay that the handler chose; None for the backoff."""

    failure: Failure
    delay_s: float | None = None
    for_good: bool = False


@dataclass(frozen=True)
class Snoozed:
    delay_s: float


@dataclass(frozen=True)
class HandedOff:
    ttl_s: float
    for_: str | None


@dataclass(frozen=True)
class Lost:
    """The lease is over."""


@dataclass(frozen=True)
class Cancelled:
    """The handler ended because the task was cancelled."""


@dataclass(frozen=True)
class Away:
    """Something that every task needs is away; that says nothing about the task."""


Judgement = Failed | Snoozed | HandedOff | Lost | Cancelled | Away


def judge(error: BaseException, worker: str, cancelled: bool = False) -> Judgement:
    """Return the meaning of an error that ended an attempt. Never raises: the task would stay taken.

    `cancelled`: the task was cancelled. TaskCancelled for any other task is a failure.
    """
    try:
        return Cancelled() if cancelled and isinstance(error, TaskCancelled) else _judged(error, worker)
    except SURVIVED:  # a verdict without its fields, or an error with a false __class__
        return _failed(error, worker)


def _judged(error: BaseException, worker: str) -> Judgement:
    if isinstance(error, NotTaken | LeaseLost):
        return Lost()
    if is_away(error):
        return Away()
    if isinstance(error, Snooze):
        return Snoozed(error.delay)
    if isinstance(error, Handoff):
        return HandedOff(error.ttl, error.for_)
    if isinstance(error, Retry | Bury):
        delay_s = error.delay if isinstance(error, Retry) else None
        said = Failure(type(error).__name__, text_of(error.reason), text_of(error.detail), worker)
        return Failed(said, delay_s, for_good=isinstance(error, Bury))
    return _failed(error, worker)


def _failed(error: BaseException, worker: str) -> Failed:
    """Return the failure for any error. Its traceback begins at the handler: our frames explain nothing."""
    detail = traceback_of(error, beyond_us(error.__traceback__))
    return Failed(Failure(type(error).__name__, text_of(error), detail, worker))


def otherwise(judgement: Judgement, error: BaseException, worker: str) -> Failed:
    """Return a plain failure, as the outcome of `judgement` could not be committed because of `error`."""
    if isinstance(judgement, Failed):
        return Failed(judgement.failure, for_good=judgement.for_good)
    return _failed(error, worker)


def checked_returned(result: object) -> object:
    """Return `result`. Raises: DeferredResult if the work has not run; VerdictReturned for a verdict."""
    require_finished("the handler", result)
    verdict = result if isinstance(result, type) else type(result)
    if issubclass(verdict, Verdict):
        raise VerdictReturned(verdict=verdict.__name__)
    return result


def troubles() -> tuple[type[Exception], ...]:
    """Return the classes of errors that calls on a queue raise."""
    return (FdbQueueError, *engine_errors())


def is_away(error: BaseException) -> bool:
    """True for Unavailable, and if a database, of the queues or of the handler, is away or full. A closed one
    is not away: this process has closed it, and each attempt would meet it.
    """
    is_outage = is_database_away(error) and not isinstance(error, DatabaseClosed)
    return is_outage or isinstance(error, Unavailable)


_RUNNING = ("fdbqueue.fleet.", "fdbqueue.integrations.django.backend")


def beyond_us(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames of a traceback below ours, which explain nothing."""
    while frames is not None and is_ours(frames.tb_frame):
        frames = frames.tb_next
    return frames


def is_ours(frame: FrameType) -> bool:
    """True for a frame that runs handlers. Other frames of this package are calls of a handler."""
    return str(frame.f_globals.get("__name__", "")).startswith(_RUNNING)


def stack_of(thread_id: int) -> str:
    """Return the stack of a hanging handler, without our own frames; empty if it cannot be formatted."""
    frame = sys._current_frames().get(thread_id)
    with suppress(Exception):  # a stack that changes meanwhile must not keep the failure from being recorded
        frames = list(traceback.walk_stack(frame)) if frame is not None else []
        above = list(takewhile(lambda entry: not is_ours(entry[0]), frames))
        return "".join(traceback.StackSummary.extract(iter(above[::-1])).format())
    return ""
