"""What a handler's ending means for its task: decided here, carried out by settling.py.

it returned, raised Done      ack
it raised Retry               released with its delay, or the backoff; the attempt has failed
it raised Snooze              released with its delay; no attempt has failed
it raised Bury                buried; the attempt has failed
it raised anything else       released with backoff; the attempt has failed
it returned a coroutine,      the same: nothing of its body has run
an awaitable or a generator
... for the last time         buried, with its history
the lease was lost            nothing: somebody else has the task, or will
the database was away         given back: it is not the task's fault
"""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType, TracebackType
from typing import Any

from fdbqueue.arguments import checked_delay
from fdbqueue.database import engine_errors
from fdbqueue.database import is_away as is_database_away
from fdbqueue.deferred import checked_function, require_finished
from fdbqueue.errors import FdbQueueError, LeaseLost, NotTaken, VerdictReturned
from fdbqueue.fleet.backoff import Backoff
from fdbqueue.task import Failure
from fdbqueue.trouble import SURVIVED, text_of, traceback_of

Effect = Callable[[Any], object]


class Verdict(Exception):
    """Raised by a handler to say by name what becomes of its task."""


class Retry(Verdict):
    """The attempt has failed; the next one after `delay` seconds, or after the worker's backoff."""

    def __init__(self, delay: float | None = None, reason: str = "", detail: str = "") -> None:
        self.delay = None if delay is None else checked_delay(delay)
        self.reason = reason
        self.detail = detail
        super().__init__(reason)


class Snooze(Verdict):
    """The task is put off for `delay` seconds, and no attempt has failed: for rate limits and tasks that come
    too early.
    """

    def __init__(self, delay: float, reason: str = "") -> None:
        """A negative delay counts as 0. Raises InvalidArgument."""
        self.delay = checked_delay(delay)
        self.reason = reason
        super().__init__(reason)


class Bury(Verdict):
    """The task is to be put aside, however many attempts it has left."""

    def __init__(self, reason: str = "", detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason)


class Done(Verdict):
    """The task is done. `effect(tr)` runs in the transaction of its ack: exactly once, or, if the lease has
    been lost, not at all. That transaction may be tried several times.
    """

    def __init__(self, effect: Effect | None = None) -> None:
        """Raises InvalidArgument, DeferredBody."""
        self.effect = None if effect is None else checked_function("effect", effect)
        super().__init__()


class Unavailable(Exception):
    """Raised by a handler if something that every task needs is away, such as a server of another program.

    The task is put off, and the attempt does not count. The worker takes no task for a pause, which doubles
    each time.
    """


@dataclass(frozen=True)
class Failed:
    """The attempt has failed; `delay_s` as the handler wants it."""

    failure: Failure
    delay_s: float | None = None
    for_good: bool = False


@dataclass(frozen=True)
class Snoozed:
    """The handler has put the task off."""

    delay_s: float


@dataclass(frozen=True)
class Lost:
    """The lease is not ours any more."""


@dataclass(frozen=True)
class Away:
    """Whatever we depend on is not there; nothing is known about the task."""


Judgement = Failed | Snoozed | Lost | Away


def judge(error: BaseException, worker: str) -> Judgement:
    """What an error that ended an attempt says about it. Never fails: a task whose attempt has no judgement
    would stay taken.
    """
    try:
        return _judged(error, worker)
    except SURVIVED:  # a verdict without its fields, an error that lies about its class
        return _failed(error, worker)


def _judged(error: BaseException, worker: str) -> Judgement:
    if isinstance(error, NotTaken | LeaseLost):
        return Lost()
    if is_away(error):
        return Away()
    if isinstance(error, Snooze):
        return Snoozed(error.delay)
    if isinstance(error, Retry | Bury):
        delay_s = error.delay if isinstance(error, Retry) else None
        said = Failure(type(error).__name__, text_of(error.reason), text_of(error.detail), worker)
        return Failed(said, delay_s, for_good=isinstance(error, Bury))
    return _failed(error, worker)


def _failed(error: BaseException, worker: str) -> Failed:
    """Any error. Its traceback begins with the handler's first line: our own lines explain nothing."""
    detail = traceback_of(error, _beyond_us(error.__traceback__))
    return Failed(Failure(type(error).__name__, text_of(error), detail, worker))


def otherwise(judgement: Judgement, error: BaseException, worker: str) -> Failed:
    """A plain failure, for a judgement that was refused with `error` when it was to be carried out."""
    if isinstance(judgement, Failed):
        return Failed(judgement.failure, for_good=judgement.for_good)
    return _failed(error, worker)


def check_returned(result: object) -> None:
    """Raises DeferredResult for work that has not run, VerdictReturned for a verdict that was not raised."""
    require_finished("the handler", result)
    verdict = result if isinstance(result, type) else type(result)
    if issubclass(verdict, Verdict):
        raise VerdictReturned(verdict=verdict.__name__)


def troubles() -> tuple[type[Exception], ...]:
    """What calls on a queue raise when it is not their arguments' fault."""
    return (FdbQueueError, *engine_errors())


def is_away(error: BaseException) -> bool:
    """Whether a database, ours or one that the handler uses, cannot be reached, or has no room; or what else
    the handler says is not there.
    """
    return is_database_away(error) or isinstance(error, Unavailable)


@dataclass(frozen=True)
class Policy:
    """When to try again, and when to stop trying."""

    max_attempts: int | None
    backoff: Backoff

    def buries(self, failed: Failed, failures: int) -> bool:
        """Whether the task is buried after `failures` that count, this one among them."""
        return failed.for_good or self.is_exhausted(failures)

    def is_exhausted(self, failures: int) -> bool:
        return self.max_attempts is not None and failures >= self.max_attempts

    def delay_s(self, failed: Failed, failures: int, random: float) -> float:
        return self.backoff.delay_s(failures, random) if failed.delay_s is None else failed.delay_s


def _beyond_us(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and is_ours(frames.tb_frame):
        frames = frames.tb_next
    return frames


def is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("fdbqueue.fleet.")


def stack_of(thread_id: int) -> str:
    """Return the stack of a hanging handler, without our own frames; empty if it cannot be formatted."""
    frame = sys._current_frames().get(thread_id)
    with suppress(Exception):  # a stack that changes meanwhile must not keep the failure from being recorded
        frames = list(traceback.walk_stack(frame)) if frame is not None else []
        above = list(takewhile(lambda entry: not is_ours(entry[0]), frames))
        return "".join(traceback.StackSummary.extract(iter(above[::-1])).format())
    return ""
