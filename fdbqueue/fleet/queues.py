"""The queues of a worker, with their weights: by name, as handles, or as a mapping."""

from collections.abc import Iterable, Mapping
from typing import Any

from fdbqueue import limits
from fdbqueue.arguments import checked_count, checked_items
from fdbqueue.database import as_database
from fdbqueue.errors import InvalidArgument
from fdbqueue.registry.registry import checked_name
from fdbqueue.seam import AnyDatabase
from fdbqueue.tasks.queue import TaskQueue

Queues = str | TaskQueue | Iterable[str | TaskQueue] | Mapping[str, int]


def opened(db: AnyDatabase, queues: Queues, root: Any) -> list[tuple[TaskQueue, int]]:
    """Open the queues; return each with its weight. Raises InvalidArgument, QueueNotFound, UnknownKind."""
    database = as_database(db)
    return [
        (
            queue._on(database) if isinstance(queue, TaskQueue) else TaskQueue.open(db, queue, root=root),
            weight,
        )
        for queue, weight in _weights_of(queues).items()
    ]


def names_of(queues: Queues) -> dict[str, int]:
    """Return the name and the weight of each queue, for a process that opens them. Raises InvalidArgument."""
    return {
        queue.name if isinstance(queue, TaskQueue) else queue: weight
        for queue, weight in _weights_of(queues).items()
    }


def _weights_of(queues: Any) -> dict[Any, int]:
    if isinstance(queues, str | TaskQueue):
        queues = [queues]
    names = checked_items("queues", queues)
    for queue in names:
        if not isinstance(queue, TaskQueue):
            checked_name(queue)
    weights = {queue: queues[queue] if isinstance(queues, Mapping) else 1 for queue in names}
    if not weights:
        raise InvalidArgument(name="queues", wanted="one queue or more", got=queues)
    for weight in weights.values():
        checked_count("weight", weight, limits.WEIGHT_MAX)
    return weights
