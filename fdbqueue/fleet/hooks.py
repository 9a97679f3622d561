"""What a worker tells of: hooks of the user's, and the logger "fdbqueue.worker", which is configured nowhere
here.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import text_of

_log = logging.getLogger("fdbqueue.worker")


@dataclass(frozen=True)
class Event:
    """What happened to a task in a worker, told once it has been committed."""

    name: str
    """"started", "succeeded", "retried", "buried" or "lease_lost"."""
    task: HeldTask
    seconds: float = 0.0
    """How long its handler ran."""
    error: BaseException | None = None
    """What the handler raised."""
    delay_s: float = 0.0
    """How long it waits, if it is retried."""

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
    "retried": logging.WARNING,
    "buried": logging.ERROR,
    "lease_lost": logging.WARNING,
}


@dataclass(frozen=True)
class Hooks:
    """Functions to be called with an Event, in the thread that worked on the task. What they raise is logged
    and changes nothing.
    """

    started: Hook | None = None
    succeeded: Hook | None = None
    retried: Hook | None = None
    buried: Hook | None = None
    lease_lost: Hook | None = None

    def tell(self, event: Event) -> None:
        if _log.isEnabledFor(_LEVELS[event.name]):
            _log.log(_LEVELS[event.name], "%s", event)
        hook: Hook | None = getattr(self, event.name)
        if hook is not None:
            try:
                hook(event)
            except (Exception, SystemExit):
                _log.exception("the hook %r failed for task %s", event.name, event.task.id)
