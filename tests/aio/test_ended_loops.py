"""Coroutine handlers that end the loop of their worker: it goes on, and so do the other tasks."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio

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
    db: fdbqueue.Database, space: Subspace, deed: Callable[[], Awaitable[None]], error: str | None
) -> None:
    """The attempt has its outcome, and the tasks behind it are done."""

    async def handle(task: aio.HeldTask) -> None:
        if task.data == "deed":
            await deed()

    queue = fdbqueue.TaskQueue.create(db, "emails", root=space)
    deeds = queue.put_many(db, ["deed"] * 2)
    queue.put_many(db, range(10))
    options: Any = {"concurrency": 1, "max_attempts": 2, "backoff": fdbqueue.Backoff(0), "root": space}
    worker = fdbqueue.Worker(db, queue, handle, **options)
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
