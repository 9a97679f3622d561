"""Coroutine handlers that are cancelled by another one than their worker."""

import asyncio

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio


@pytest.mark.parametrize("by", ["itself", "its task"])
def test_a_handler_that_is_cancelled_with_its_lease_fails(
    db: fdbqueue.Database, space: Subspace, by: str
) -> None:
    """As a lease that is lost, it would have no failure, and its task would stay taken."""

    async def handle(_: aio.HeldTask) -> None:
        worker.stop()
        if by == "itself":
            raise asyncio.CancelledError
        running = asyncio.current_task()
        assert running is not None
        running.cancel()
        await asyncio.sleep(0)

    queue = fdbqueue.TaskQueue.create(db, "emails", "fifottl", ttr=60, root=space)
    task = queue.put(db, "x")
    worker = fdbqueue.Worker(db, "emails", handle, root=space, max_attempts=1)
    worker.run()

    assert queue.peek(db, task.id).state is fdbqueue.TaskState.BURIED
    assert [failure.error for failure in queue.failures(db, task.id)] == ["RuntimeError"]
