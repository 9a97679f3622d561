"""The plan that a process goes by: it is a stored one, and that of the database of the call."""

from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Queue, TaskQueue, transactional
from fdbqueue.errors import RepartitionNotCommitted

Made = tuple[Any, Callable[..., Any]]
RETRIES = 9
"""More than a call needs that follows a plan."""


@pytest.fixture(params=["tasks", "items"])
def made(request: pytest.FixtureRequest, db: Database, space: Subspace) -> Made:
    """A queue, and its put."""
    if request.param == "items":
        items = Queue.named(db, "q", root=space)
        return items, items.enqueue
    tasks = TaskQueue.create(db, "q", "fifo", root=space)
    return tasks, tasks.put


def counts(queue: Any) -> Callable[..., int]:
    """The number of partitions, in a few attempts."""
    return transactional(retry_limit=RETRIES)(lambda tr: len(queue.partitions(tr)))


def test_a_call_after_a_repartition_is_refused(db: Database, made: Made) -> None:
    """In one transaction: without the error, every retry would conflict."""
    queue, put = made

    @transactional(retry_limit=RETRIES)
    def body(tr: Any) -> None:
        queue.repartition(tr, 4)
        put(tr, 1)

    with pytest.raises(RepartitionNotCommitted, match="'q'") as refused:
        body(db)
    assert refused.value.name == "q"  # type: ignore[attr-defined]
    assert counts(queue)(db) == 1
    queue.repartition(db, 2)
    put(db, 1)
    assert counts(queue)(db) == 2


def test_a_repartition_in_a_transaction_is_followed(db: Database, made: Made) -> None:
    queue, put = made
    transactional(retry_limit=RETRIES)(queue.repartition)(db, 4)
    put(db, 1)
    assert counts(queue)(db) == 4
