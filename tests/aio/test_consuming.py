"""The loop over tasks as they come: acks after the body, releases when the body is left."""

import asyncio
from contextlib import suppress

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import aio
from tests.aio.support import on_loop, until


async def numbers(db: aio.Database, queue: aio.TaskQueue) -> dict[str, int]:
    return {name: (await queue.statistics(db))["tasks"][name] for name in ("ready", "taken", "done")}


async def released(db: aio.Database, queue: aio.TaskQueue) -> None:
    while (await queue.statistics(db))["tasks"]["taken"]:
        await asyncio.sleep(0.001)


@on_loop
async def test_a_task_is_acked_when_the_body_has_ended(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put_many(db, [1, 2, 3])
        seen = []
        async for task in queue.consume(db, timeout=0):
            seen.append(task.data)
            assert (await numbers(db, queue))["taken"] == 1

        assert seen == [1, 2, 3]
        assert await numbers(db, queue) == {"ready": 0, "taken": 0, "done": 3}


@on_loop
async def test_a_break_releases_the_task(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put_many(db, [1, 2])
        async for _ in queue.consume(db):
            break
        await released(db, queue)

        assert await numbers(db, queue) == {"ready": 2, "taken": 0, "done": 0}


@on_loop
async def test_an_exception_releases_the_task(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put(db, 1)
        with suppress(KeyError):
            async for task in queue.consume(db):
                raise KeyError(task.data)
        await released(db, queue)

        assert await numbers(db, queue) == {"ready": 1, "taken": 0, "done": 0}


@on_loop
async def test_a_cancel_releases_the_task(url: str, root: Subspace) -> None:
    begun = asyncio.Event()

    async def consume(db: aio.Database, queue: aio.TaskQueue) -> None:
        async for _ in queue.consume(db):
            begun.set()
            await asyncio.sleep(60)

    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put(db, 1)
        consuming = asyncio.create_task(consume(db, queue))
        await begun.wait()
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        await released(db, queue)

        assert await numbers(db, queue) == {"ready": 1, "taken": 0, "done": 0}


@on_loop
async def test_the_context_manager_has_released_when_it_is_left(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put(db, 1)
        async with queue.consume(db) as tasks:
            async for _ in tasks:
                break

        assert await numbers(db, queue) == {"ready": 1, "taken": 0, "done": 0}


@on_loop
async def test_a_verb_in_the_body_decides_about_the_task(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put_many(db, ["ack", "bury"])
        async for task in queue.consume(db, timeout=0):
            await (queue.ack(db, task) if task.data == "ack" else queue.bury(db, task))

        assert (await queue.statistics(db))["tasks"]["buried"] == 1
        assert await numbers(db, queue) == {"ready": 0, "taken": 0, "done": 1}


@on_loop
async def test_a_cancel_during_the_ack_leaves_no_task_taken(url: str, root: Subspace) -> None:
    """Of many acks that combine, some are cancelled before the leader has claimed them."""
    gate, began = asyncio.Event(), []

    async def consume(db: aio.Database, queue: aio.TaskQueue) -> None:
        async with queue.consume(db, timeout=0) as tasks:
            async for task in tasks:
                began.append(task)
                await gate.wait()

    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put_many(db, list(range(20)))
        consuming = [asyncio.create_task(consume(db, queue)) for _ in range(20)]
        await until(lambda: len(began) == 20)
        gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in consuming:
            task.cancel()
        await asyncio.wait(consuming)
        await released(db, queue)

        found = await numbers(db, queue)
        assert found["ready"] + found["done"] == 20
