"""Element queues: named elements that any process may lock, get and remove."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.queues.elements import queue as queue
else:
    __getattr__ = files_of(__name__)
