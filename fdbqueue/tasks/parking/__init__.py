"""Parking: tasks of keys over a limit wait where no take meets them, and come back when the key is free."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks.parking import limit as limit
else:
    __getattr__ = files_of(__name__)
