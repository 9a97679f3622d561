"""The task queues of a broker, by the names of Celery's queues: `fdbqueue tasks celery` shows one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fdbqueue import limits
from fdbqueue.celery import bindings
from fdbqueue.celery.envelope import put_options
from fdbqueue.celery.puts import current
from fdbqueue.database import Database
from fdbqueue.errors import QueueKindMismatch, QueueNotFound
from fdbqueue.registry.registry import Registry
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.seam import Transaction
from fdbqueue.task import TaskState
from fdbqueue.tasks.queue import TaskQueue

T = TypeVar("T")

KIND = "fifottl"
_KINDS = (KIND, "limfifottl")
"""Kinds with the options of a message: priority, delay and expiration."""


class Queues:
    """The queues of one database. Each is made at its first use."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.registry = Registry(DEFAULT_ROOT)
        self._known: dict[str, TaskQueue] = {}

    def get(self, name: str) -> TaskQueue:
        """The queue of that name; it is created if there is none.

        In a transaction of the program, a new queue is part of it, and not remembered.
        Raises: QueueKindMismatch for a queue that cannot carry messages.
        """
        found = self._known.get(name)
        if found is None:
            found = TaskQueue.create(current() or self.database, name, KIND, if_not_exists=True)
            found = found._on(self.database)  # its threads are those of our database, and end with it
            if found.kind not in _KINDS:
                raise QueueKindMismatch(name=name, found=found.kind, wanted=" or ".join(_KINDS))
            if current() is None:
                self._known[name] = found
        return found

    def declare_owned(self, name: str, owner: bytes) -> None:
        """Make a queue that goes with the session `owner`."""
        bindings.drop_dead(self.database, self.registry)
        self.forget([name])
        self.get(name)
        bindings.own(self.database, name, owner)

    def put(self, names: list[str], message: Mapping[str, Any]) -> None:
        """Put the message into each of the queues, in the transaction of the program if there is one."""
        options = put_options(message, self.database.runtime.now())
        for name in names:
            self.on(name, lambda queue: queue.put(current() or self.database, dict(message), **options))

    def on(self, name: str, act: Callable[[TaskQueue], T]) -> T:
        """Call `act` with the queue; again with a new one if it was dropped meanwhile."""
        try:
            return act(self.get(name))
        except QueueNotFound:
            self.forget([name])
            return act(self.get(name))

    def forget(self, names: Iterable[str]) -> None:
        """Open the queues again at their next use."""
        for name in names:
            self._known.pop(name, None)

    def size(self, name: str) -> int:
        """Number of messages that are ready."""
        return self.on(name, lambda queue: queue.statistics(self.database)["tasks"]["ready"])

    def purge(self, name: str) -> int:
        """Remove the messages that are not held, in bounded transactions. Return their number."""
        removed = 0
        while more := self.on(name, self._purge_some):
            removed += more
        return removed

    def _purge_some(self, queue: TaskQueue) -> int:
        return self.registry.write(self.database, lambda tr: _purge_some(tr, queue))

    def exists(self, name: str) -> bool:
        return self.registry.look(self.database, name) is not None

    def drop(self, name: str) -> None:
        self.forget([name])
        bindings.drop_queue(self.database, self.registry, name)


def _purge_some(tr: Transaction, queue: TaskQueue) -> int:
    """Remove a page of ready or delayed messages. Return their number, 0 if there are none."""
    for state in (TaskState.READY, TaskState.DELAYED):
        after: str | None = None
        while True:
            page = queue.tasks(tr, state, limits.VERB_BATCH, after=after)
            for task in page:
                queue.delete(tr, task.id)
            if page or page.next is None:
                break
            after = page.next
        if page:
            return len(page)
    return 0
