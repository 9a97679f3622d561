"""Queues with partitions, and task keys that lie in several of them."""

from typing import Any

from fdbqueue import Database, Failure, TaskQueue
from fdbqueue.core.partitions import home_of
from fdbqueue.tasks.options import key_bytes

PARTITIONS = 4


def key_in(partition: int, count: int = PARTITIONS, nth: int = 0) -> str:
    """A task key that lies in that partition of a queue."""
    fitting = (f"k{n}" for n in range(10_000) if home_of(key_bytes(f"k{n}"), count) == partition)
    for _ in range(nth):
        next(fitting)
    return next(fitting)


def bury_in(queue: TaskQueue, db: Database, partition: int, error: str = "A", data: Any = None) -> str:
    """Put a task into that partition of PARTITIONS, and bury it with a failure of that class."""
    id_ = queue.put(db, data, key=key_in(partition)).id
    queue.bury(db, id_, failure=Failure(error, f"in {partition}"))
    return id_


def moving_key(partition: int, count: int, new_count: int) -> str:
    """A task key that lies in that partition of `count`, and in another one of `new_count`."""
    stays = {key_in(partition, new_count, n) for n in range(99)}
    return next(key for n in range(99) if (key := key_in(partition, count, n)) not in stays)
