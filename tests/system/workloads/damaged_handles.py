"""The queues of the workload `damaged`, and the calls that it makes of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core.errors import DamagedElement
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import Registry
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import SetAside, Unreadable
from fdbqueue.operate.verify.verify import verify
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from fdbqueue.testing.trace import told, unsound
from tests.system.workloads.common import SPACE

NAME = "damaged"
ROOT = Subspace((NAME,))
"""Not the default one, of which an auditor judges each key: no auditor expects damage."""
KEYS, MOST = 3, 100
_TEXT = b'"<0123456789>'
"""Bytes of a text: other ones in their place would be another value, and no damage."""
HARMS: Sequence[Callable[[bytes], bytes]] = (
    lambda whole: whole[:-1],
    lambda whole: whole[: len(whole) // 2],
    lambda whole: whole[:1] + b"\xff" * (len(whole) - 1),
    lambda whole: whole[:-1] if whole[0] in _TEXT else bytes((whole[0] ^ 1,)) + whole[1:],
)
STATES: Sequence[TaskState] = (TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED)


def key_of(text: str) -> int:
    return len(text) % KEYS


class Handle(ABC):
    """A queue of values, as all kinds of the workload have it."""

    contents: slice
    """The keys in which values may be damaged."""
    harms = HARMS
    """All damages that a reader notices."""

    def __init__(self, q: Any, contents: slice) -> None:
        self.q, self.contents = q, contents

    @abstractmethod
    def put(self, tr: Any, texts: Sequence[str]) -> None:
        """Put a value for each text, in this order."""

    @abstractmethod
    def take(self, tr: Any, count: int) -> list[Any]:
        """Texts, or tasks with their leases."""

    def count(self, db: Any) -> int:
        """The number of the values that are counted, without those that were set aside."""
        count: int = self.q.size(db)
        return count

    @abstractmethod
    def listed(self, db: Any) -> list[Any]:
        """The data of all values; an Unreadable in place of that of a damaged one."""

    def unsound(self, db: Any) -> list[str]:
        """The findings of a verification."""
        return unsound(db, ROOT)

    def aside(self, db: Any) -> list[SetAside]:
        return list(every_row(partial(self.q.aside, db, 2)))


class Items(Handle):
    def __init__(self, client: Client, random: Random) -> None:
        partitions, contended = random.choice((None, 2)), random.choice(("staged", "simple"))
        q = Queue.named(client.db, NAME, partitions=partitions, root=ROOT, contended=contended)
        super().__init__(q, _contents(client))

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        self.q.enqueue_many(tr, texts)

    def take(self, tr: Any, count: int) -> list[Any]:
        return [*self.q.dequeue_many(tr, count)]

    def listed(self, db: Any) -> list[Any]:
        return list(every_row(partial(self.q.items, db, 3)))


class Fair(Handle):
    def __init__(self, client: Client, random: Random) -> None:  # noqa: ARG002  # as the other kinds
        space = SPACE[NAME]
        super().__init__(FairQueue(space, key=key_of, root=ROOT), space.range())

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        for text in texts:
            self.q.put(tr, text)

    def take(self, tr: Any, count: int) -> list[Any]:
        found = (self.q.get(tr) for _ in range(count))
        return [text for text in found if text is not None]

    def listed(self, db: Any) -> list[Any]:
        found = self.q.snapshot(db, MOST)
        return [*found.round, *(item for _, items in found.lines for item in items)]

    def unsound(self, db: Any) -> list[str]:
        return [*super().unsound(db), *told(verify(db, self.q))]


class Elements(Handle):
    harms = HARMS[:2]
    """Other bytes of the same length may be those of an element with another schema, which stays."""

    def __init__(self, client: Client, random: Random) -> None:  # noqa: ARG002  # as the other kinds
        q = ElementQueue.named(client.db, NAME, schema={"body": "string"}, root=ROOT)
        super().__init__(q, _contents(client))

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        for text in texts:
            self.q.add(tr, {"body": text})

    def take(self, tr: Any, count: int) -> list[Any]:
        found = (self._dequeued(tr, name) for name in list(self.q.names(tr)))
        return list(islice((text for text in found if is_readable(text)), count))

    def _dequeued(self, tr: Any, name: str) -> Any:
        try:
            return self.q.dequeue(tr, name)["body"]
        except DamagedElement as error:
            return Unreadable(error, b"")

    def count(self, db: Any) -> int:
        count: int = self.q.count(db)
        return count

    def listed(self, db: Any) -> list[Any]:
        """A damaged element raises its error, each time: a look sets none aside."""
        shown = list[Any]()
        for name in self.q.names(db):
            with suppress(DamagedElement):
                shown.append(self.q.get_element(db, name)["body"])
        return shown


class Tasks(Handle):
    """Tasks of any kind. A task that is taken stays in the queue until it is acked."""

    def __init__(self, client: Client, random: Random) -> None:
        kind = random.choice(("fifo", "fifottl", "utube", "utubettl", "fair"))
        self.is_keyed = kind in ("utube", "utubettl", "fair")
        partitions = 2 if kind != "fifottl" and random.random() < 0.3 else 1
        q = TaskQueue.create(client.db, NAME, kind, root=ROOT, partitions=partitions)
        super().__init__(q, q.contents.range())

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        for text in texts:
            options: dict[str, Any] = {"key": key_of(text)} if self.is_keyed else {}
            if self.q.kind.endswith("ttl"):
                options["pri"] = len(text) % 5
            self.q.put(tr, text, **options)

    def take(self, tr: Any, count: int) -> list[Any]:
        return [*self.q.take_many(tr, count)]

    def count(self, db: Any) -> int:
        tasks = self.q.statistics(db)["tasks"]
        return sum(tasks[state.name.lower()] for state in STATES)

    def listed(self, db: Any) -> list[Any]:
        return [task.data for state in STATES for task in self.tasks(db, state)]

    def tasks(self, db: Any, state: TaskState) -> list[Task]:
        return list(every_row(partial(self.q.tasks, db, state, 3)))


KINDS: Sequence[Callable[[Client, Random], Handle]] = (Items, Fair, Elements, Tasks, Tasks, Tasks)


def _contents(client: Client) -> slice:
    """The keys of the one queue that has a name."""
    [definition] = Registry(ROOT).names(client.db)
    under: slice = Registry(ROOT).contents(definition).range()
    return under


def is_readable(data: Any) -> bool:
    return not isinstance(data, Unreadable)
