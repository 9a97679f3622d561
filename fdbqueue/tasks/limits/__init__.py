"""Limits: the number of tasks that run at a time, or start in a span of time, in all queues that share it."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks.limits import lanes as lanes
    from fdbqueue.tasks.limits import rule as rule
else:
    __getattr__ = files_of(__name__)
