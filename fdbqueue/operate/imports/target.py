"""Target: the queue that an import puts into, a task queue or a plain one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from fdbqueue.core import limits
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.imports.origin import Entry, Fate
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue


@dataclass(frozen=True)
class Prepared:
    entry: Entry
    value: Any = None
    size_bytes: int = 0
    problem: str | None = None

    @property
    def pri(self) -> int | None:
        pri: int | None = self.entry.pri  # Reading skips any other
        return pri


class Target(Protocol):
    batch_items: int

    def takes(self, fate: Fate) -> bool:
        """True if entries of this fate are put."""

    def put(self, tr: Transaction, entries: Sequence[Prepared]) -> None:
        """Put entries, in order."""


class Tasks:
    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        # A batch needs room for all its tasks at once: a bounded queue may never have it.
        self.batch_items = 1 if queue.options["capacity"] else limits.IMPORT_BATCH_ITEMS

    def takes(self, fate: Fate) -> bool:
        return fate is not Fate.LEFT_OUT

    def put(self, tr: Transaction, entries: Sequence[Prepared]) -> None:
        """Put tasks, and bury those that have failed for good. Raises as put_many does."""
        for pri, group in groupby(entries, key=attrgetter("pri")):
            alike = list(group)
            options = {} if pri is None else {"pri": pri}
            tasks = self._queue.put_many(tr, [one.value for one in alike], **options)
            for one, task in zip(alike, tasks, strict=True):
                if one.entry.fate is Fate.BURIED:
                    self._queue.bury(tr, task.id)


class Items:
    batch_items = limits.IMPORT_BATCH_ITEMS

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def takes(self, fate: Fate) -> bool:
        """False for failed entries, too: a plain queue has no buried items."""
        return fate is Fate.READY

    def put(self, tr: Transaction, entries: Sequence[Prepared]) -> None:
        self._queue.enqueue_many(tr, [one.value for one in entries])
