"""The task queues behind the queues of Dramatiq, made at their first use."""

from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.errors import QueueNotFound
from fdbqueue.frameworks.opening import Opening
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.tasks.queue import TaskQueue

T = TypeVar("T")

KIND, CODEC = "fifottl", "bytes"
"""Priorities and delays; and the bytes that Dramatiq's own encoder has made."""


class TaskQueues:
    """Handles by the names that Dramatiq knows. A queue `mails` is the task queue `dramatiq.mails`."""

    def __init__(self, opening: Opening, namespace: str, root: Any = DEFAULT_ROOT) -> None:
        self._opening = opening
        self._namespace = namespace
        self._root = root
        self._known: dict[tuple[int, str], TaskQueue] = {}

    def named(self, name: str) -> TaskQueue:
        """Raises: QueueKindMismatch, UnsupportedOption and others of TaskQueue.create."""
        database = self._opening.database()
        key = id(database), name
        queue = self._known.get(key)
        if queue is None:
            queue = self._known[key] = TaskQueue.create(
                database, f"{self._namespace}.{name}", KIND, codec=CODEC, if_not_exists=True, root=self._root
            )
        return queue

    def use(self, name: str, verb: Callable[[TaskQueue], T]) -> T:
        """Call `verb` with the queue. One that was dropped meanwhile is made again."""
        try:
            return verb(self.named(name))
        except QueueNotFound:
            self._known.clear()
            return verb(self.named(name))
