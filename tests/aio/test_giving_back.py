"""A cancelled call gives back each item, task and lock, whatever the form of its arguments."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from tests.aio.support import cancel_soon, on_loop


@on_loop
async def test_a_cancelled_dequeue_of_many_gives_all_back_in_order(tmp_path: Path) -> None:
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        queue = aio.Queue(Subspace(("items",)))
        await queue.enqueue_many(db, [1, 2, 3])
        await cancel_soon(queue.dequeue_many(db, 3))

        assert await queue.items(db, 10) == [1, 2, 3]


@on_loop
async def test_a_cancelled_take_of_many_releases_each_task(tmp_path: Path) -> None:
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        emails = await aio.TaskQueue.create(db, "emails")
        await emails.put_many(db, [1, 2, 3])
        await cancel_soon(emails.take_many(db, 3))
        found = await emails.statistics(db)

        assert (found["tasks"]["ready"], found["calls"]["take"]) == (3, 0)


@on_loop
async def test_a_take_whose_hook_waits_gives_its_tasks_back(
    url: str, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The take is cancelled when it has left the line."""
    take_many = fdbqueue.TaskQueue.take_many

    def take_and_tell(queue: Any, db: Any, *args: Any, **options: Any) -> Any:
        found = take_many(queue, db, *args, **options)
        db.runtime.sleep(1)  # as a hook of an observer may: longer than a look at a busy cluster
        return found

    monkeypatch.setattr(fdbqueue.TaskQueue, "take_many", take_and_tell)
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", root=root)
        await emails.put_many(db, [1, 2, 3])
        taking = asyncio.create_task(emails.take_many(db, 3))
        while (await emails.statistics(db))["tasks"]["taken"] < 3:
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])

        assert (await emails.statistics(db))["tasks"]["ready"] == 3


LOCKS: list[Callable[..., Any]] = [
    lambda queue, db, name: partial(queue.lock, db, name),
    lambda queue, db, name: partial(queue.lock, db, name=name),
    lambda queue, db, name: partial(queue.lock, tr=db, name=name),
    lambda queue, db, name: partial(queue.acquire, db, name),
]


@pytest.mark.parametrize("call", LOCKS, ids=["lock", "name", "keywords", "acquire"])
@on_loop
async def test_a_cancelled_lock_is_free_again(call: Callable[..., Any], tmp_path: Path) -> None:
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        queue = aio.ElementQueue(Subspace(("elements",)), {"body": "string"})
        name = await queue.add(db, {"body": "x"})
        await cancel_soon(call(queue, db, name)())

        assert await queue.lock(db, name)


@on_loop
async def test_a_cancelled_acquire_breaks_only_its_own_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge may have broken it, and another caller may have the next one."""
    tokens, unlock = list[Any](), fdbqueue.ElementQueue.unlock

    def noted(queue: Any, *args: Any, **options: Any) -> Any:
        tokens.append(options["token"])
        return unlock(queue, *args, **options)

    monkeypatch.setattr(fdbqueue.ElementQueue, "unlock", noted)
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        queue = aio.ElementQueue(Subspace(("elements",)), {"body": "string"})
        await cancel_soon(queue.acquire(db, await queue.add(db, {"body": "x"})))

    assert [type(token) for token in tokens] == [str]


@on_loop
async def test_a_call_that_is_not_cancelled_gives_nothing_back(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = aio.Queue(root["items"])
        await queue.enqueue(tr=db, value=None)
        async with asyncio.timeout(5):
            assert await queue.dequeue(tr=db, default=5, timeout=1) is None

        assert await queue.dequeue(db, default=5) == 5
