"""The verbs of fdbqueue.aio, also those of groups and schedules, have the effects of the blocking ones."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.core.errors import GroupClosed, InvalidArgument, NotGranted, NotHandedOff
from fdbqueue.core.root_keys import RootKeys
from tests.aio.support import on_database, on_loop


@on_database
async def test_a_hundred_waiting_takes_get_one_task_each(db: aio.Database, queue: aio.TaskQueue) -> None:
    waiting = [asyncio.create_task(queue.take(db, timeout=60)) for _ in range(100)]
    await asyncio.gather(*(queue.put(db, number) for number in range(100)))
    taken = [task.data for task in await asyncio.gather(*waiting) if task is not None]

    assert sorted(taken) == list(range(100))


@on_database
async def test_puts_of_one_unique_key_at_once_make_one_task(db: aio.Database, queue: aio.TaskQueue) -> None:
    puts = (queue.put(db, n, unique="k", on_conflict="replace") for n in range(20))
    found = await asyncio.gather(*puts)

    assert len({task.id for task in found}) == 1
    assert sum(not task.existed for task in found) == 1


@on_database
async def test_a_recipe_queue_works_in_order(db: aio.Database, root: Subspace) -> None:
    queue = aio.Queue(root["items"])
    await queue.enqueue_many(db, [1, 2, 3])
    first = await queue.dequeue(db)
    await queue.give_back(db, [first])

    assert await queue.dequeue_many(db, 10) == [1, 2, 3]
    assert await queue.dequeue(db, "none", timeout=0.01) == "none"


@on_database
async def test_a_fair_queue_gives_out_rounds(db: aio.Database, root: Subspace) -> None:
    queue = aio.FairQueue(root["fair"], key=lambda item: item[0])
    for item in ("a1", "a2", "b1"):
        await queue.put(db, item)

    assert [await queue.get(db) for _ in range(4)] == ["a1", "b1", "a2", None]


@on_database
async def test_an_element_queue_is_browsed_with_async_for(db: aio.Database, root: Subspace) -> None:
    queue = aio.ElementQueue(root["elements"], {"body": "string"})
    name = await queue.add(db, {"body": "x"})

    assert [found async for found in queue.names(db)] == [name]
    assert await queue.lock(db, name)
    assert await queue.get(db, name) == {"body": "x"}
    members = aio.QueueSet([queue])
    assert [found async for _, found in members.names(db)] == [name]
    assert isinstance((await members.first(db))[0], aio.ElementQueue)


@on_database
async def test_a_proxy_belongs_to_the_task_that_connects(db: aio.Database, root: Subspace) -> None:
    async with aio.PersistentQueue(db, "spool", root=root) as spool:
        await spool.put("x")

        async def fetch_and_end() -> None:
            proxy = await spool.connect()
            assert await proxy.get() == "x"

        await asyncio.create_task(fetch_and_end())
        # The task has ended without an ack, as a thread might: the item comes back.
        assert await spool.get(timeout=60) == "x"
        await spool.task_done()
        await spool.join()


@on_database
async def test_a_transaction_of_a_proxy_is_all_or_nothing(db: aio.Database, root: Subspace) -> None:
    async with aio.PersistentQueue(db, "spool", root=root) as spool:
        with suppress(RuntimeError):
            async with spool.transaction():
                await spool.put("x")
                raise RuntimeError
        async with spool.transaction():
            await spool.put("y")

        assert await spool.get() == "y"
        assert await spool.empty()


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


@on_database
async def test_a_named_session_takes_in_its_own_name(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    await queue.put(db, 1)
    async with aio.Session(db, "worker-1", root=root) as session:
        task = await queue.take(db, session=session)
        assert task is not None
        assert (await queue.statistics(db))["tasks"]["taken"] == 1
    # The session has ended, so its task is ready again.
    assert (await queue.statistics(db))["tasks"]["ready"] == 1


@on_database
async def test_awaits_of_one_session_at_once_open_it_once(db: aio.Database, root: Subspace) -> None:
    async def opened(session: aio.Session) -> Any:
        return (await session).blocking

    session = aio.Session(db, "worker-1", root=root)
    first, second = await asyncio.gather(opened(session), opened(session))

    assert first is second
    await session.end()
    assert await db.get(RootKeys(root).session_named("worker-1")) is None


@on_database
async def test_an_await_opens_what_a_cancelled_one_has_not(db: aio.Database, root: Subspace) -> None:
    async def opened(session: aio.Session) -> None:
        await session

    session = aio.Session(db, "worker-1", root=root)
    first, second = asyncio.create_task(opened(session)), asyncio.create_task(opened(session))
    await asyncio.sleep(0)
    first.cancel()
    await second

    assert not session.lost
    await session.end()


@on_database
async def test_functions_are_awaited_too(db: aio.Database, root: Subspace) -> None:
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


@on_database
async def test_a_copy_of_an_element_queue_has_a_pass_of_its_own(db: aio.Database, root: Subspace) -> None:
    queue = aio.ElementQueue(root["elements"], {"body": "string"})
    names = [await queue.add(db, {"body": body}) for body in ("x", "y")]
    copy = queue.copy()

    assert await queue.first(db) == await copy.first(db) == names[0]
    assert await queue.next(db) == await copy.next(db) == names[1]


@on_database
async def test_halves_of_queues_are_awaited(db: aio.Database, queue: aio.TaskQueue, root: Subspace) -> None:
    await queue.producer().put(db, "x")
    async with queue.consumer().consume(db, timeout=0) as taken:
        assert [task.data async for task in taken] == ["x"]
    items = await aio.Queue.named(db, "items", root=root)
    await items.producer().enqueue(db, "y")
    assert await items.consumer().dequeue(db) == "y"
    fair = aio.FairQueue(root["fair"], key=len, root=root)
    await fair.producer().put(db, "z")
    assert await fair.consumer().take_item(db, timeout=5) == (True, "z")
    refused = (queue.producer(), "take"), (items.consumer(), "enqueue"), (fair.consumer(), "put")
    for half, verb in refused:
        with pytest.raises(NotGranted, match=f"aio.{type(half).__name__} has no `{verb}`"):
            getattr(half, verb)


@on_database
async def test_a_group_of_one_transaction_starts_its_task(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    reports = await aio.TaskQueue.create(db, "reports", root=root)

    @aio.transactional
    async def begin(tr: aio.Transaction) -> aio.Group:
        async with aio.group(tr, then=(reports, "done"), root=root) as g:
            await g.put(queue, 1)
            await g.put_many(queue, [2, 3])
        return g.group

    group = await begin(db)
    assert (await group.progress(db)).left == 3
    for _ in range(3):
        task = await queue.take(db, 0)
        assert task is not None
        await queue.ack(db, task)
    assert (await group.wait(db, 60)).done == 3
    then = await reports.take(db, 60)
    assert then is not None
    assert then.data == "done"
    assert [one.id for one in await aio.list_groups(db, root=root)] == [group.id]


@on_database
async def test_a_group_of_a_failed_block_stays_open(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    """The caller may catch the error, and put the other members in the same transaction."""

    @aio.transactional
    async def begin(tr: aio.Transaction) -> aio.Group:
        made: list[aio.Group] = []
        with suppress(KeyError):
            async with aio.group(tr, root=root) as g:
                made.append(g.group)
                await g.put(queue, 1)
                raise KeyError("planned")
        await made[0].put(tr, queue, 2)
        return made[0]

    assert (await (await begin(db)).progress(db)).left == 2


@on_database
async def test_an_open_group_is_filled_and_cancelled(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    group = await aio.Group.create(db, root=root)
    await group.put(db, queue, 1)
    await queue.put(db, 2, group=group)
    same = await aio.Group.open(db, group.id, root=root)
    seen = await same.progress(db)
    await same.cancel(db)
    assert await group.wait_for_progress(db, seen, 60) is not None
    assert (await group.wait(db, 60)).failed == 2
    with pytest.raises(GroupClosed):
        await group.put(db, queue, 3)
    with pytest.raises(InvalidArgument):
        async with aio.group(db, root=root):  # type: ignore[arg-type]
            pass


@on_database
async def test_a_schedule_is_fired_beside_a_loop(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    schedule = await aio.Schedule.create(db, "tick", every=1, queue="emails", data=5, root=root)
    task = await queue.take(db, 60)
    await schedule.pause(db)

    assert task is not None
    assert (task.data, task.headers["schedule"]) == (5, "tick")
    assert (await schedule.status(db)).paused


@on_database
async def test_each_verb_of_a_schedule_is_awaited(db: aio.Database, root: Subspace) -> None:
    await aio.TaskQueue.create(db, "reports", root=root)
    await aio.Schedule.create(db, "tick", every=60, queue="reports", root=root)
    schedule = await aio.Schedule.open(db, "tick", root=root)
    await schedule.change(db, every=3_600, data=6)
    await schedule.pause(db)
    await schedule.resume(db)

    assert (await schedule.run(db)).data == 6
    assert len(await schedule.next_times(db, 3)) == 3
    assert [found.name for found in await aio.list_schedules(db, root=root)] == ["tick"]
    assert await aio.fire_due(db, root=root) == 0
    await schedule.delete(db)
    assert await aio.list_schedules(db, root=root) == []


@on_database
async def test_attempts_of_a_queue_count_without_a_worker(db: aio.Database, root: Subspace) -> None:
    backoff = fdbqueue.Backoff(0)
    queue = await aio.TaskQueue.create(db, "counted", attempts=2, backoff=backoff, root=root)
    for own, states in ((None, "r!"), (1, "!")):
        await queue.put(db, "x", attempts=own)
        for state in states:
            task = await queue.take(db, timeout=0)
            assert task is not None
            assert (await queue.release(db, task, failure=fdbqueue.Failure("Odd"))).state == state


@on_database
async def test_attempts_and_backoffs_that_are_none_are_refused(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    wrong = [{"attempts": n} for n in (0, -1, True, 1.5, 1_000_001, "5")] + [{"backoff": 5}]
    for options in wrong:
        for call in (
            queue.put(db, 1, **options),
            queue.put_many(db, [1], **options),
            aio.TaskQueue.create(db, "new", root=root, **options),
        ):
            with pytest.raises(InvalidArgument):
                await call
    assert (await queue.statistics(db))["tasks"]["total"] == 0


@on_database
async def test_a_task_that_was_handed_off_is_completed_or_failed(
    db: aio.Database, queue: aio.TaskQueue
) -> None:
    for n in range(2):
        await queue.put(db, n)
    first, second = await queue.take_many(db, 2)
    await queue.hand_off(db, first, 60, for_="Ada")
    await queue.consumer().hand_off(db, second, 60)
    with pytest.raises(InvalidArgument):
        await queue.hand_off(db, first, -1)
    assert (await queue.peek(db, first)).handed_to == "Ada"
    await queue.complete(db, first.id)
    await queue.fail(db, second.id, "no")

    with pytest.raises(NotHandedOff):
        await queue.complete(db, second.id)
    assert (await queue.statistics(db))["tasks"]["total"] == 1
