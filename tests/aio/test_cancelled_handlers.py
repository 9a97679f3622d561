"""Coroutine handlers that are cancelled, by their worker or another one, or that end its loop."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, TaskQueue, TaskState, Worker, aio
from fdbqueue.fleet.status import Tally
from tests.aio.support import on_database, until
from tests.support import PATIENCE_S, wait_until

TTR_S = 1.5  # a heartbeat comes each third of it; a busy machine renews later


@pytest.mark.parametrize("by", ["itself", "its task"])
def test_a_handler_that_is_cancelled_with_its_lease_fails(db: Database, space: Subspace, by: str) -> None:
    """As a lease that is lost, it would have no failure, and its task would stay taken."""

    async def handle(_: aio.HeldTask) -> None:
        worker.stop()
        if by == "itself":
            raise asyncio.CancelledError
        running = asyncio.current_task()
        assert running is not None
        running.cancel()
        await asyncio.sleep(0)

    queue = TaskQueue.create(db, "emails", "fifottl", ttr=60, root=space)
    task = queue.put(db, "x")
    worker = Worker(db, "emails", handle, root=space, attempts=1)
    worker.run()

    assert queue.peek(db, task.id).state is TaskState.BURIED
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
    db: Database, space: Subspace, handler: Handler, ttr_s: float
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

    queue = TaskQueue.create(db, "emails", "fifottl", ttr=ttr_s, root=space)
    worker = Worker(db, "emails", handle, root=space, attempts=1)
    worker.start()
    task = queue.put(db, "x")
    assert begun.wait(PATIENCE_S)
    queue.cancel(db, task.id)
    wait_until(lambda: worker.status().tally == Tally(cancelled=1))
    worker.stop()
    assert worker.join(PATIENCE_S)
    assert told == ([] if handler is fails else [True])


@on_database
async def test_a_coroutine_may_end_its_work_after_a_cancel(db: aio.Database, root: Subspace) -> None:
    """The next heartbeats do not cancel it again, and an ack is possible: the work was done."""
    begun = asyncio.Event()

    async def handle(_: aio.HeldTask) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(TTR_S)

    queue = await aio.TaskQueue.create(db, "emails", "fifottl", ttr=TTR_S, root=root)
    worker = aio.Worker(db, queue, handle, root=root)
    task = await queue.put(db, "x")
    await worker.start()
    await begun.wait()
    await queue.cancel(db, task.id)
    await until(lambda: worker.status().tally == Tally(done=1))
    worker.stop()
    await worker.join()


ENDS_WITHIN_S = 100


async def interrupt() -> None:
    raise KeyboardInterrupt


async def leave() -> None:
    raise SystemExit(3)


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


async def exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0)


async def interrupt_in_a_task() -> None:
    await asyncio.create_task(interrupt())


async def leave_in_a_task() -> None:
    await asyncio.create_task(leave())


async def cancel_all_tasks() -> None:
    """The tasks that the worker itself has on this loop are among them."""
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        (interrupt, "KeyboardInterrupt"),
        (leave, "SystemExit"),
        (interrupt_in_a_task, "KeyboardInterrupt"),
        (leave_in_a_task, "SystemExit"),
        (cancel_all_tasks, "RuntimeError"),
        (stop_the_loop, None),
        (exit_in_a_callback, None),
    ],
)
def test_a_worker_outlives_the_end_of_its_loop(
    db: Database, space: Subspace, deed: Callable[[], Awaitable[None]], error: str | None
) -> None:
    """The attempt has its outcome, and the tasks behind it are done."""

    async def handle(task: aio.HeldTask) -> None:
        if task.data == "deed":
            await deed()

    queue = TaskQueue.create(db, "emails", root=space)
    deeds = queue.put_many(db, ["deed"] * 2)
    queue.put_many(db, range(10))
    options: Any = {"concurrency": 1, "attempts": 2, "backoff": fdbqueue.Backoff(0), "root": space}
    worker = Worker(db, queue, handle, **options)
    worker.start(until_empty=True)

    assert worker.join(ENDS_WITHIN_S)
    assert (worker.error, worker.status().tally.done) == (None, 10 if error else 12)
    failures = [failure.error for deed in deeds for failure in queue.failures(db, deed)] if error else []
    assert failures == [error] * (4 if error else 0)


@pytest.mark.parametrize(
    ("deed", "raised"),
    [
        (interrupt, KeyboardInterrupt),
        (interrupt_in_a_task, KeyboardInterrupt),
        (leave_in_a_task, SystemExit),
        (cancel_all_tasks, asyncio.CancelledError),
    ],
)
def test_a_loop_of_the_program_ends_as_its_handler_wants(
    url: str, root: Subspace, deed: Callable[[], Awaitable[None]], raised: type[BaseException]
) -> None:
    """The program gets the error, and nothing of the worker holds it back."""

    async def handle(_: aio.HeldTask) -> None:
        await deed()

    async def main() -> None:
        async with aio.open(url) as db:
            queue = await aio.TaskQueue.create(db, "emails", root=root)
            await queue.put(db, 1)
            await aio.Worker(db, queue, handle, root=root).run()

    with pytest.raises(raised):
        asyncio.run(main())
