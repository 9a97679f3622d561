"""Coroutine handlers that are cancelled: with their tasks, or by another one than their worker."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.fleet.status import Tally
from tests.aio.support import on_loop, until
from tests.support import PATIENCE_S, wait_until

TTR_S = 1.5  # a heartbeat comes each third of it; a busy machine renews later


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


async def waits(_: aio.HeldTask) -> None:
    await asyncio.Event().wait()


async def tells_progress(task: aio.HeldTask) -> None:
    while True:
        await task.progress(0.5)
        await asyncio.sleep(0.01)


async def fails(task: aio.HeldTask) -> None:
    try:
        await waits(task)
    finally:
        raise ValueError("odd")


Handler = Callable[[aio.HeldTask], Awaitable[None]]


ENDS = {"waits": (waits, TTR_S), "fails": (fails, TTR_S), "tells progress": (tells_progress, 600)}


@pytest.mark.parametrize(("handler", "ttr_s"), ENDS.values(), ids=ENDS)
def test_a_coroutine_is_cancelled_with_its_task(
    db: fdbqueue.Database, space: Subspace, handler: Handler, ttr_s: float
) -> None:
    """A heartbeat learns of it, or the progress that the coroutine tells; and that is no failure."""
    begun, told = threading.Event(), []

    async def handle(task: aio.HeldTask) -> None:
        begun.set()
        try:
            await handler(task)
        except asyncio.CancelledError:
            told.append(task.cancelled)
            raise

    queue = fdbqueue.TaskQueue.create(db, "emails", "fifottl", ttr=ttr_s, root=space)
    worker = fdbqueue.Worker(db, "emails", handle, root=space, max_attempts=1)
    worker.start()
    task = queue.put(db, "x")
    assert begun.wait(PATIENCE_S)
    queue.cancel(db, task.id)
    wait_until(lambda: worker.status().tally == Tally(cancelled=1))
    worker.stop()
    assert worker.join(PATIENCE_S)
    assert told == ([] if handler is fails else [True])


@on_loop
async def test_a_coroutine_may_end_its_work_after_a_cancel(url: str, root: Subspace) -> None:
    """The next heartbeats do not cancel it again, and an ack is possible: the work was done."""
    begun = asyncio.Event()

    async def handle(_: aio.HeldTask) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(TTR_S)

    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "emails", "fifottl", ttr=TTR_S, root=root)
        worker = aio.Worker(db, queue, handle, root=root)
        task = await queue.put(db, "x")
        await worker.start()
        await begun.wait()
        await queue.cancel(db, task.id)
        await until(lambda: worker.status().tally == Tally(done=1))
        worker.stop()
        await worker.join()
