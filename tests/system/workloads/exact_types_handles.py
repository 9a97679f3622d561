"""The handles of the workload `exact_types`: queues of items, with a name and without, and of tasks."""

from collections.abc import Sequence
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.common import SPACE

NAME, TIMEOUT_S = "exact_types", 5.0
TYPES: Sequence[Any] = (None, int, str)
ROOT = Subspace(("exact types",))
"""Not the default one, of which an auditor judges each take: no take may pass over a value there."""


class Items:
    """A queue of items, as one of its handles sees it."""

    def __init__(self, client: Client, type_: Any, **options: Any) -> None:
        self._q = Queue.named(client.db, NAME, type=type_, root=ROOT, **options)

    def put(self, tr: Any, values: Sequence[Any]) -> None:
        self._q.enqueue_many(tr, values)

    def take(self, tr: Any, count: int) -> list[Any]:
        return self._q.dequeue_many(tr, count)

    def wait(self, db: Any) -> Any:
        return self._q.dequeue(db, timeout=TIMEOUT_S)


class Unnamed(Items):
    def __init__(self, client: Client, type_: Any, **options: Any) -> None:  # noqa: ARG002  # as its base
        self._q = Queue(SPACE[NAME], type=type_, root=ROOT, **options)


class Tasks(Items):
    def __init__(self, client: Client, type_: Any, **_: Any) -> None:
        self._tasks = TaskQueue.create(client.db, NAME, "fifo", type=type_, if_not_exists=True, root=ROOT)

    def put(self, tr: Any, values: Sequence[Any]) -> None:
        self._tasks.put_many(tr, values)

    def take(self, tr: Any, count: int) -> list[Any]:
        tasks = self._tasks.take_many(tr, count)
        for task in tasks:
            self._tasks.ack(tr, task)
        return [task.data for task in tasks]

    def wait(self, db: Any) -> Any:
        task = self._tasks.take(db, TIMEOUT_S)
        return None if task is None else self._tasks.ack(db, task).data
