"""The task queues behind the queues of a backend, made at their first put, or by a worker.

Django makes a backend for each thread and each request of an asynchronous server. They share the database,
the queues and the program's transaction.
"""

from contextlib import AbstractContextManager
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.seam import AnyDatabase, AnyTransaction, Transaction
from fdbqueue.core.task import Task
from fdbqueue.integrations.common.opening import Opening, Within
from fdbqueue.integrations.django.api import InvalidTaskBackend
from fdbqueue.tasks.kinds import kind_named
from fdbqueue.tasks.queue import TaskQueue

_openings: dict[str | None, Opening] = {}
within = Within()


def opening_of(place: str | AnyDatabase | None) -> Opening:
    """The opening of an open database; the one opening of this process for a URL, or the environment."""
    if place is None or isinstance(place, str):
        return _openings.setdefault(place, Opening(place))
    return Opening(place)


def transaction(tr: AnyTransaction) -> AbstractContextManager[None]:
    """Enqueue the tasks of the block within `tr`: they are there if and only if `tr` commits.

    `tr` is a transaction of the database of the backend. The block may run again, with the whole body of
    `tr`: then the tasks of the earlier run are gone, and the new ones have new ids. Do not wait for a result
    inside: the task is not there before the commit.
    """
    return within.block(tr)


KIND, CODEC = "fifottl", "json"
"""Priorities and delays; and the values that Django lets a task have."""

NEEDED = frozenset({"pri", "delay"})
CODECS = ("json", "msgpack")


class TaskQueues:
    """Handles by the names that Django knows. A queue `mails` is the task queue `NAMESPACE.mails`."""

    def __init__(self, opening: Opening, namespace: str) -> None:
        self._opening = opening
        self._namespace = namespace
        self._known: dict[tuple[Database, str], TaskQueue] = {}

    @property
    def database(self) -> Database:
        return self._opening.database()

    def made(self, name: str) -> TaskQueue:
        """The queue, made if it was not there. Raises: InvalidTaskBackend without priorities or delays."""
        return self._known.get(self._key(name)) or self._remember(name, self._create(name, None))

    def there(self, name: str) -> TaskQueue:
        known = self._known.get(self._key(name))
        return known or self._remember(name, TaskQueue.open(self.database, self._full(name)))

    def put(self, name: str, tr: Transaction | None, data: Any, **options: Any) -> Task:
        """Put a task, in the transaction `tr` if there is one. A queue that was dropped is made again."""
        known = self._known.get(self._key(name))
        if known is not None:
            try:
                return known.put(tr or self.database, data, **options)
            except QueueNotFound:
                self._known.pop(self._key(name), None)
        if tr is not None:  # the handle is not kept, as the transaction may not commit
            return self._create(name, tr).put(tr, data, **options)
        return self.made(name).put(self.database, data, **options)

    def _create(self, name: str, tr: Transaction | None) -> TaskQueue:
        target = tr or self.database
        queue = TaskQueue.create(target, self._full(name), KIND, codec=CODEC, if_not_exists="any")
        return _usable(queue._on(self.database))  # its threads are those of our database, and end with it

    def _remember(self, name: str, queue: TaskQueue) -> TaskQueue:
        self._known[self._key(name)] = _usable(queue)
        return queue

    def _key(self, name: str) -> tuple[Database, str]:
        return self.database, name

    def _full(self, name: str) -> str:
        return f"{self._namespace}.{name}"


_shared: dict[tuple[Opening, str], TaskQueues] = {}


def queues_of(place: str | AnyDatabase | None, namespace: str) -> TaskQueues:
    """The handles that all backends of this process with the same URL and namespace share."""
    opening = opening_of(place)
    return _shared.setdefault((opening, namespace), TaskQueues(opening, namespace))


def _usable(queue: TaskQueue) -> TaskQueue:
    if not kind_named(queue.kind).options >= NEEDED:
        raise InvalidTaskBackend(
            f"The queue {queue.name!r} is of the kind {queue.kind!r}, without priorities or delays: "
            f"Django's tasks need one of the kind {KIND!r}, or another namespace."
        )
    if queue.options["codec"] not in CODECS:
        raise InvalidTaskBackend(
            f"The queue {queue.name!r} has the codec {queue.options['codec']!r}: Django's tasks need json or "
            "msgpack, or another namespace."
        )
    return queue
