"""Events of a worker: it calls the user's hooks, and writes to the logger "fdbqueue.worker".

No handler of that logger is configured here: programs configure logs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from fdbqueue.core.arguments import checked_function, require_finished
from fdbqueue.core.errors import InvalidArgument, TaskCancelled
from fdbqueue.core.logger import Troubles, logger
from fdbqueue.core.visible import SURVIVED, text_of
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Verdict

_log = logger("fdbqueue.worker")


@dataclass(frozen=True, slots=True)
class Event:
    """The start or the outcome of an attempt. An outcome is reported after its commit."""

    name: str
    """"started", "succeeded", "retried", "snoozed", "buried", "cancelled" or "lease_lost"."""
    task: HeldTask
    seconds: float = 0.0
    """Run time of the handler."""
    error: BaseException | None = field(default=None, compare=False)
    """The error that the handler raised."""
    delay_s: float = 0.0
    """Delay before the next attempt, if the task was retried or snoozed."""

    def __str__(self) -> str:
        what = f"task {self.task.id} of {self.task.queue}: {self.name.replace('_', ' ')}"
        after = f" after {self.seconds:.3f} s" if self.seconds else ""
        again = f", again in {self.delay_s:.1f} s" if self.delay_s else ""
        why = "" if self.error is None else f": {type(self.error).__name__}: {text_of(self.error)}"
        return f"{what}{after}{again}{why}"


Hook = Callable[[Event], object]

_LEVELS = {
    "started": logging.DEBUG,
    "succeeded": logging.DEBUG,
    "snoozed": logging.INFO,
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
