"""A cancelled call gives back each item, task and lock. One that ends something goes on to its end."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from tests.aio.support import cancel_soon, on_database, on_directory, on_loop, until


@on_directory
async def test_a_cancelled_dequeue_of_many_gives_all_back_in_order(db: aio.Database) -> None:
    queue = aio.Queue(Subspace(("items",)))
    await queue.enqueue_many(db, [1, 2, 3])
    await cancel_soon(queue.dequeue_many(db, 3))

    assert await queue.items(db, 10) == [1, 2, 3]


@on_directory
async def test_a_cancelled_take_of_many_releases_each_task(db: aio.Database, queue: aio.TaskQueue) -> None:
    await queue.put_many(db, [1, 2, 3])
    await cancel_soon(queue.take_many(db, 3))
    found = await queue.statistics(db)

    assert (found["tasks"]["ready"], found["calls"]["take"]) == (3, 0)


@on_database
async def test_a_take_whose_hook_waits_gives_its_tasks_back(
    db: aio.Database, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The take is cancelled when it has left the line."""
    take_many = fdbqueue.TaskQueue.take_many

    def take_and_tell(queue: Any, db: Any, *args: Any, **options: Any) -> Any:
        found = take_many(queue, db, *args, **options)
        db.runtime.sleep(1)  # as a hook of an observer may: longer than a look at a busy cluster
        return found

    monkeypatch.setattr(fdbqueue.TaskQueue, "take_many", take_and_tell)
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
@on_directory
async def test_a_cancelled_lock_is_free_again(db: aio.Database, call: Callable[..., Any]) -> None:
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


@on_database
async def test_a_call_that_is_not_cancelled_gives_nothing_back(db: aio.Database, root: Subspace) -> None:
    queue = aio.Queue(root["items"])
    await queue.enqueue(tr=db, value=None)
    async with asyncio.timeout(5):
        assert await queue.dequeue(tr=db, default=5, timeout=1) is None

    assert await queue.dequeue(db, default=5) == 5


def ends_of(owner: type, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each call of a blocking method that has returned."""
    ends, method = list[str](), getattr(owner, verb)

    def noted(self: Any, *args: Any) -> Any:
        result = method(self, *args)
        ends.append(verb)
        return result

    monkeypatch.setattr(owner, verb, noted)
    return ends


@on_directory
async def test_a_cancelled_close_of_a_proxy_goes_on_to_its_end(
    db: aio.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = await aio.PersistentQueue(db, "spool")
    await spool.put("x")
    await spool.get()
    ends = ends_of(fdbqueue.PersistentQueue, "close", monkeypatch)
    await cancel_soon(spool.close())
    async with asyncio.timeout(5):
        await until(lambda: ends == ["close"])


@on_directory
async def test_a_cancelled_end_of_a_session_goes_on_to_its_end(
    db: aio.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await aio.Session(db, "worker-1")
    ends = ends_of(fdbqueue.Session, "end", monkeypatch)
    await cancel_soon(session.end())
    async with asyncio.timeout(5):
        await until(lambda: ends == ["end"])


@pytest.mark.parametrize("fails", [False, True])
@on_directory
async def test_a_cancelled_transaction_of_a_proxy_goes_on_to_its_end(db: aio.Database, fails: bool) -> None:
    """It commits its puts, or gives its items back."""
    async with aio.PersistentQueue(db, "spool") as spool:
        await spool.put("x")

        async def move() -> None:
            async with spool.transaction():
                await spool.ack(await spool.get())
                await spool.put("y")
                reached.set()
                if fails:
                    raise KeyError

        for turns in range(8):
            reached = asyncio.Event()
            moving = asyncio.create_task(move())
            await reached.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            moving.cancel()
            await asyncio.wait([moving])

            assert spool.unacked == []
            assert await spool.get() == ("x" if fails else "y")
            await spool.task_done()
            await spool.put("x")


@on_database
async def test_a_cancelled_transaction_of_a_proxy_waits_for_no_room(db: aio.Database, root: Subspace) -> None:
    async with aio.PersistentQueue(db, "spool", maxsize=1, root=root) as spool:
        await spool.put("x")

        async def put_another() -> None:
            async with spool.transaction():
                await spool.put("y")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await put_another()
        assert await spool.get() == "x"
        await asyncio.sleep(0.05)

        assert await spool.empty()
