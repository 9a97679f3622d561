"""Schedules: tasks that are put at given times, by any process that passes (docs/schedules.md)."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks.schedules import passing as passing
    from fdbqueue.tasks.schedules import schedule as schedule
else:
    __getattr__ = files_of(__name__)
