"""The verbs of fdbqueue.aio have the effects of the blocking ones, on every engine."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.core.errors import NotGranted, QueueNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from tests.aio.support import on_loop


@on_loop
async def test_a_task_is_put_taken_and_acked(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", "fifottl", ttr=60, root=root)
        await emails.put(db, {"to": "ada"})
        task = await emails.take(db, timeout=30)
        assert task is not None
        assert task.data == {"to": "ada"}
        await emails.ack(db, task)

        assert (await emails.statistics(db))["tasks"]["done"] == 1
        assert (await aio.verify(db, "emails", root=root)).findings == ()


@on_loop
async def test_a_waiting_take_gets_the_task_of_a_later_put(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", root=root)
        waiting = asyncio.create_task(emails.take(db, timeout=60))
        await asyncio.sleep(0)
        await emails.put(db, 17)
        task = await waiting

        assert task is not None
        assert task.data == 17


@on_loop
async def test_a_hundred_waiting_takes_get_one_task_each(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", root=root)
        waiting = [asyncio.create_task(emails.take(db, timeout=60)) for _ in range(100)]
        await asyncio.gather(*(emails.put(db, number) for number in range(100)))
        taken = [task.data for task in await asyncio.gather(*waiting) if task is not None]

        assert sorted(taken) == list(range(100))


@on_loop
async def test_puts_of_one_unique_key_at_once_make_one_task(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", root=root)
        puts = (emails.put(db, n, unique="k", on_conflict="replace") for n in range(20))
        found = await asyncio.gather(*puts)

        assert len({task.id for task in found}) == 1
        assert sum(not task.existed for task in found) == 1


@on_loop
async def test_an_error_of_a_verb_is_raised_where_it_is_awaited(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        with pytest.raises(QueueNotFound):
            await aio.TaskQueue.open(db, "emails", root=root)


@on_loop
async def test_a_recipe_queue_works_in_order(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = aio.Queue(root["items"])
        await queue.enqueue_many(db, [1, 2, 3])
        first = await queue.dequeue(db)
        await queue.give_back(db, [first])

        assert await queue.dequeue_many(db, 10) == [1, 2, 3]
        assert await queue.dequeue(db, "none", timeout=0.01) == "none"


@on_loop
async def test_a_fair_queue_gives_out_rounds(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = aio.FairQueue(root["fair"], key=lambda item: item[0])
        for item in ("a1", "a2", "b1"):
            await queue.put(db, item)

        assert [await queue.get(db) for _ in range(4)] == ["a1", "b1", "a2", None]


@on_loop
async def test_an_element_queue_is_browsed_with_async_for(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = aio.ElementQueue(root["elements"], {"body": "string"})
        name = await queue.add(db, {"body": "x"})

        assert [found async for found in queue.names(db)] == [name]
        assert await queue.lock(db, name)
        assert await queue.get(db, name) == {"body": "x"}
        members = aio.QueueSet([queue])
        assert [found async for _, found in members.names(db)] == [name]
        assert isinstance((await members.first(db))[0], aio.ElementQueue)


@on_loop
async def test_a_proxy_belongs_to_the_task_that_connects(url: str, root: Subspace) -> None:
    async with aio.open(url) as db, aio.PersistentQueue(db, "spool", root=root) as spool:
        await spool.put("x")

        async def fetch_and_end() -> None:
            proxy = await spool.connect()
            assert await proxy.get() == "x"

        await asyncio.create_task(fetch_and_end())
        # The task has ended without an ack, as a thread might: the item comes back.
        assert await spool.get(timeout=60) == "x"
        await spool.task_done()
        await spool.join()


@on_loop
async def test_a_transaction_of_a_proxy_is_all_or_nothing(url: str, root: Subspace) -> None:
    async with aio.open(url) as db, aio.PersistentQueue(db, "spool", root=root) as spool:
        with suppress(RuntimeError):
            async with spool.transaction():
                await spool.put("x")
                raise RuntimeError
        async with spool.transaction():
            await spool.put("y")

        assert await spool.get() == "y"
        assert await spool.empty()


@on_loop
async def test_an_item_of_none_is_not_the_default_of_a_dequeue(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = aio.Queue(root["items"])
        await queue.enqueue(db, None)
        assert await queue.dequeue(db, "default") is None
        assert await queue.dequeue(db, "default") == "default"


async def ttr_of_own_session(db: aio.Database, root: Subspace) -> float:
    """That of the session in which a take without a session holds its task."""
    queue = await aio.TaskQueue.create(db, "held", root=root)
    await queue.put(db, 1)
    task = await queue.take(db, 0)
    assert task is not None
    holder = await queue.holder(db, task.id)
    assert holder is not None
    assert (holder.seen, holder.dies) != (None, None)
    return round((holder.dies or 0.0) - (holder.seen or 0.0), 3)


@on_loop
async def test_a_loop_has_the_session_ttr_of_its_opening(url: str, root: Subspace) -> None:
    async with aio.open(url, session_ttr_s=77) as db:
        assert await ttr_of_own_session(db, root) == 77


def test_a_coroutine_has_the_session_ttr_of_the_workers_database(url: str, root: Subspace) -> None:
    found = list[float]()

    async def look(task: aio.HeldTask) -> None:
        found.append(await ttr_of_own_session(task.database, root))

    with fdbqueue.open(url, session_ttr_s=77) as db:
        fdbqueue.TaskQueue.create(db, "emails", root=root).put(db, 1)
        fdbqueue.Worker(db, "emails", look, root=root).run(until_empty=True)
    assert found == [77]


@on_loop
async def test_a_named_session_takes_in_its_own_name(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", root=root)
        await emails.put(db, 1)
        async with aio.Session(db, "worker-1", root=root) as session:
            task = await emails.take(db, session=session)
            assert task is not None
            assert (await emails.statistics(db))["tasks"]["taken"] == 1
        # The session has ended, so its task is ready again.
        assert (await emails.statistics(db))["tasks"]["ready"] == 1


@on_loop
async def test_awaits_of_one_session_at_once_open_it_once(url: str, root: Subspace) -> None:
    async def opened(session: aio.Session) -> Any:
        return (await session).blocking

    async with aio.open(url) as db:
        session = aio.Session(db, "worker-1", root=root)
        first, second = await asyncio.gather(opened(session), opened(session))

        assert first is second
        await session.end()


@on_loop
async def test_an_await_opens_what_a_cancelled_one_has_not(url: str, root: Subspace) -> None:
    async def opened(session: aio.Session) -> None:
        await session

    async with aio.open(url) as db:
        session = aio.Session(db, "worker-1", root=root)
        first, second = asyncio.create_task(opened(session)), asyncio.create_task(opened(session))
        await asyncio.sleep(0)
        first.cancel()
        await second

        assert not session.lost
        await session.end()


@on_loop
async def test_functions_are_awaited_too(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        await aio.TaskQueue.create(db, "emails", root=root)

        assert await aio.list_queues(db, root=root) == ["emails"]
        assert set(await aio.statistics(db, root=root)) == {"emails"}
        assert await aio.workers(db, root=root) == []
        assert [queue.name for queue in (await aio.Overview(root=root).figures(db)).queues] == ["emails"]


@on_loop
async def test_closing_ends_the_waits(url: str, root: Subspace) -> None:
    db = await aio.open(url)
    emails = await aio.TaskQueue.create(db, "emails", root=root)
    waiting = [asyncio.create_task(emails.take(db)) for _ in range(20)]
    await asyncio.sleep(0)
    await db.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)

    assert {type(end).__name__ for end in ends} == {"DatabaseClosed"}


@on_loop
async def test_a_copy_of_an_element_queue_has_a_pass_of_its_own(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = aio.ElementQueue(root["elements"], {"body": "string"})
        names = [await queue.add(db, {"body": body}) for body in ("x", "y")]
        copy = queue.copy()

        assert await queue.first(db) == await copy.first(db) == names[0]
        assert await queue.next(db) == await copy.next(db) == names[1]


@on_loop
async def test_halves_of_queues_are_awaited(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        tasks = await aio.TaskQueue.create(db, "tasks", root=root)
        await tasks.producer().put(db, "x")
        async with tasks.consumer().consume(db, timeout=0) as taken:
            assert [task.data async for task in taken] == ["x"]
        items = await aio.Queue.named(db, "items", root=root)
        await items.producer().enqueue(db, "y")
        assert await items.consumer().dequeue(db) == "y"
        fair = aio.FairQueue(root["fair"], key=len, root=root)
        await fair.producer().put(db, "z")
        assert await fair.consumer().take_item(db, timeout=5) == (True, "z")
        refused = (tasks.producer(), "take"), (items.consumer(), "enqueue"), (fair.consumer(), "put")
        for half, verb in refused:
            with pytest.raises(NotGranted, match=f"aio.{type(half).__name__} has no `{verb}`"):
                getattr(half, verb)


@on_loop
async def test_two_awaits_at_once_open_one_session(tmp_path: Path) -> None:
    """Nothing would end another one."""

    async def opened() -> aio.Session:
        return await session

    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        session = aio.Session(db, "worker-1")
        await asyncio.gather(opened(), opened())
        await session.end()
        assert await db.get(RootKeys(DEFAULT_ROOT).session_named("worker-1")) is None
