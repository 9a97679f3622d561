"""Queue: FoundationDB's queue recipe, first in, first out."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.queues.recipe import queue as queue
else:
    __getattr__ = files_of(__name__)
