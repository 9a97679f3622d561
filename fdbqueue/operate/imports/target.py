"""Target: the queue that an import puts into, a task queue or a plain one.

Each entry has a position, which grows in the order of delivery and which the origin never uses again. So the
position of the last entry that was put tells a later import where to go on.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from fdbqueue.core import limits
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

Position = tuple[Any, ...]
UNMARKED = b""


class Fate(Enum):
    """The place of an entry after the import."""

    READY = "ready"
    BURIED = "buried"
    """Failed for good in the origin."""
    LEFT_OUT = "left out"
    """Done in the origin."""


@dataclass(frozen=True)
class Entry:
    """One entry as the origin stores it."""

    position: Position
    where: str
    """Its place, for messages."""
    raw: bytes
    identity: str = ""
    """Tells it from an entry with equal bytes at the same position of another origin."""
    fate: Fate = Fate.READY
    pri: Any = None
    """As the origin has it: an int, None, or a value that is no priority."""
    damage: str | None = None
    """The reason why its bytes could not even be found."""

    def mark(self) -> bytes:
        """A digest that recognises the entry; UNMARKED for a damaged one, which may be mended."""
        return (
            UNMARKED
            if self.damage is not None
            else hashlib.sha256(self.identity.encode() + b"\x00" + self.raw).digest()
        )


class Origin(Protocol):
    label: str
    """The name of its progress."""
    kind: str
    """The kind of the queue that --create makes for it."""

    def entries(self) -> Iterator[Entry]:
        """Read the entries in order of their positions."""

    def value(self, entry: Entry) -> Any:
        """Decode an entry. Raises any Exception for bytes that are not readable."""


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
