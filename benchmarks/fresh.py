"""Queues and keys that no benchmark has used before, removed at its end: the database may be a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, TaskQueue

SPACE = Subspace(("fdbqueue-bench", fdbqueue.RealRuntime().random_bytes(8)))
_made: list[str] = []


def fresh_queue(db: Database, kind: str = "fifottl", **options: Any) -> TaskQueue:
    """A new task queue, which `leaving_nothing` removes."""
    name = f"benchmark-{db.runtime.random_bytes(8).hex()}"
    _made.append(name)
    return TaskQueue.create(db, name, kind, **options)


@contextmanager
def leaving_nothing(url: str) -> Iterator[None]:
    """Remove the queues made at `url`, and all below `SPACE`, however the block ends."""
    try:
        yield
    finally:
        with fdbqueue.open(url) as db:
            db.clear_range_startswith(SPACE.key())
            for name in set(_made) & set(fdbqueue.list_queues(db)):
                queue = TaskQueue.open(db, name)
                while queue.truncate_some(db):
                    pass
                queue.drop(db)
