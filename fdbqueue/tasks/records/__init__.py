"""The stored parts of a task: its record, its keys, and the counters of its queue."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks.records import groups as groups
else:
    __getattr__ = files_of(__name__)
