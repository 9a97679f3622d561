"""The task queues of an adapter, by the names that its framework knows, and the options of their tasks."""

from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.queue import TaskQueue

T = TypeVar("T")

KIND = "fifottl"
"""The kind of a new queue: with priorities and delays."""

PRIORITY_MAX = 255
"""The highest priority of a message, as in AMQP; a queue has the lowest number first."""


class QueueMap:
    """Handles of queues. A queue that is missing, or was dropped, is made at its next use."""

    def __init__(
        self,
        database: Callable[[], Database],
        namespace: str = "",
        codec: str = "json",
        *,
        require: Callable[[TaskQueue], object] | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """`namespace`: the queue `mails` is the task queue `NAMESPACE.mails`, or without one `mails`.
        `require` raises for a queue that cannot be used; None: only one with the options of a new queue can.
        """
        self.database = database
        self._prefix = f"{namespace}." if namespace else ""
        self._codec = codec
        self._require = require
        self._root = root
        self._known: dict[tuple[Database, str], TaskQueue] = {}

    def made(self, name: str, tr: Transaction | None = None) -> TaskQueue:
        """The queue of that name, created if there is none. In a transaction of the program, a new queue is
        part of it, and not remembered, as it may not commit. Raises: the errors of `require`.
        """
        known = self._known.get((self.database(), name))
        if known is not None:
            return known
        if_not_exists: Any = True if self._require is None else "any"
        queue = TaskQueue.create(
            tr or self.database(),
            self._prefix + name,
            KIND,
            codec=self._codec,
            if_not_exists=if_not_exists,
            root=self._root,
        )
        queue = queue._on(self.database())  # its threads are those of our database, and end with it
        return self._checked(queue) if tr is not None else self._remembered(name, queue)

    def there(self, name: str) -> TaskQueue:
        """Raises: QueueNotFound; the errors of `require`."""
        database = self.database()
        return self._known.get((database, name)) or self._remembered(
            name, TaskQueue.open(database, self._prefix + name, root=self._root)
        )

    def use(self, name: str, verb: Callable[[TaskQueue], T], tr: Transaction | None = None) -> T:
        """Call `verb` with the queue; again with a new one if it was dropped meanwhile."""
        try:
            return verb(self.made(name, tr))
        except QueueNotFound:
            self.forget(name)
            return verb(self.made(name, tr))

    def forget(self, *names: str) -> None:
        """Open the queues again at their next use."""
        for name in names:
            self._known.pop((self.database(), name), None)

    def _remembered(self, name: str, queue: TaskQueue) -> TaskQueue:
        self._known[self.database(), name] = self._checked(queue)
        return queue

    def _checked(self, queue: TaskQueue) -> TaskQueue:
        if self._require is not None:
            self._require(queue)
        return queue
