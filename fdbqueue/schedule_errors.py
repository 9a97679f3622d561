"""The public errors of schedules; errors.py has them, too, and the rules for all."""

from fdbqueue.error_root import FdbQueueError

__all__ = [
    "ScheduleExists",
    "ScheduleNotFound",
    "ScheduleUnfit",
    "ScheduleUnreadable",
]


class ScheduleNotFound(FdbQueueError, LookupError):
    """There is no schedule named {name!r}."""

    name: str


class ScheduleExists(FdbQueueError):
    """A schedule named {name!r} exists already: change it, delete it, or create with if_exists="keep" or if_exists="change"."""


class ScheduleUnfit(FdbQueueError, ValueError):
    """The schedule {name!r} does not fit the queue {queue!r}: {reason}. Change the schedule."""


class ScheduleUnreadable(FdbQueueError, ValueError):
    """The schedule {name!r} cannot be read ({reason}): a newer release wrote it, or it is damaged. Delete and create it again, or use that release."""
