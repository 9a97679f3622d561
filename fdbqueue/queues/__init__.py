"""Queues without leases: the recipe's, fair and persistent ones, and those of elements."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.queues import fair as fair
else:
    __getattr__ = files_of(__name__)
