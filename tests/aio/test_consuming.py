"""The loop over tasks as they come: acks after the body, releases when the body is left."""

import asyncio
import gc
import sys
import threading
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.aio.queues import leases_of
from fdbqueue.core.errors import InvalidArgument, NotTaken
from fdbqueue.fleet import held
from tests.aio.support import cancel_soon, on_database, on_loop, until


async def numbers(db: aio.Database, queue: aio.TaskQueue) -> dict[str, int]:
    return {name: (await queue.statistics(db))["tasks"][name] for name in ("ready", "taken", "done")}


async def released(db: aio.Database, queue: aio.TaskQueue) -> None:
    while (await queue.statistics(db))["tasks"]["taken"]:
        await asyncio.sleep(0.001)


@on_database
async def test_a_task_is_acked_when_the_body_has_ended(db: aio.Database, queue: aio.TaskQueue) -> None:
    await queue.put_many(db, [1, 2, 3])
    seen = []
    async for task in queue.consume(db, timeout=0):
        seen.append(task.data)
        assert (await numbers(db, queue))["taken"] == 1

    assert seen == [1, 2, 3]
    assert await numbers(db, queue) == {"ready": 0, "taken": 0, "done": 3}


@pytest.mark.parametrize("leave", ["break", "error", "cancel"])
@on_database
async def test_a_body_that_is_left_releases_its_task(
    db: aio.Database, queue: aio.TaskQueue, leave: str
) -> None:
    async def consume() -> None:
        async for task in queue.consume(db):
            if leave == "break":
                break
            if leave == "error":
                raise KeyError(task.data)
            await asyncio.create_task(cancel(consuming))

    await queue.put_many(db, [1, 2])
    consuming = asyncio.create_task(consume())
    await asyncio.wait([consuming])
    await released(db, queue)

    assert consuming.cancelled() == (leave == "cancel")
    if leave == "error":
        assert isinstance(consuming.exception(), KeyError)
    assert await numbers(db, queue) == {"ready": 2, "taken": 0, "done": 0}


async def cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


@on_database
async def test_the_context_manager_has_released_when_it_is_left(
    db: aio.Database, queue: aio.TaskQueue
) -> None:
    await queue.put(db, 1)
    async with queue.consume(db) as tasks:
        async for _ in tasks:
            break

    assert await numbers(db, queue) == {"ready": 1, "taken": 0, "done": 0}


@on_database
async def test_a_verb_in_the_body_decides_about_the_task(db: aio.Database, queue: aio.TaskQueue) -> None:
    await queue.put_many(db, ["ack", "bury"])
    async for task in queue.consume(db, timeout=0):
        await (queue.ack(db, task) if task.data == "ack" else queue.bury(db, task))

    assert (await queue.statistics(db))["tasks"]["buried"] == 1
    assert await numbers(db, queue) == {"ready": 0, "taken": 0, "done": 1}


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The data of the tasks of each renewal. They come every few milliseconds."""
    seen = []
    renew = fdbqueue.TaskQueue.renew

    def noted(queue: fdbqueue.TaskQueue, tr: Any, tasks: Any) -> Any:
        seen.append(sorted(task.data for task in tasks))
        return renew(queue, tr, tasks)

    monkeypatch.setattr(fdbqueue.TaskQueue, "renew", noted)
    monkeypatch.setattr(held, "BEATS_PER_LEASE", 10_000)
    return seen


@on_database
async def test_the_lease_is_renewed_while_the_body_runs(
    db: aio.Database, root: Subspace, renewals: list[list[Any]]
) -> None:
    queue = await aio.TaskQueue.create(db, "q", "fifottl", ttr=60, root=root)
    await queue.put(db, 1)
    async with queue.consume(db) as tasks:
        task = await anext(tasks)
        await until(lambda: len(renewals) > 3)

        assert task.until is not None
        assert ((await queue.peek(db, task)).until or 0) > task.until


@on_database
async def test_bodies_share_a_renewal(db: aio.Database, root: Subspace, renewals: list[list[Any]]) -> None:
    async with AsyncExitStack() as loops:
        queue = await aio.TaskQueue.create(db, "q", "fifottl", ttr=60, root=root)
        await queue.put_many(db, [1, 2, 3])
        for _ in range(3):
            await anext(await loops.enter_async_context(queue.consume(db)))

        await until(lambda: [1, 2, 3] in renewals)


@pytest.mark.parametrize("leave", ["break", "end", "release"])
@on_database
async def test_no_lease_is_renewed_after_its_body(db: aio.Database, root: Subspace, leave: str) -> None:
    queue = await aio.TaskQueue.create(db, "q", "fifottl", ttr=60, root=root)
    await queue.put(db, 1)
    async for task in queue.consume(db, timeout=0):
        assert len(leases_of(db.blocking).holds()) == 1
        if leave == "release":
            await queue.bury(db, task)
        if leave == "break":
            break
    await released(db, queue)

    assert leases_of(db.blocking).holds() == []


@on_loop
async def test_a_body_learns_that_its_lease_is_lost(
    url: str, root: Subspace, renewals: list[list[Any]]
) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", "fifottl", ttr=60, root=root)
        await queue.put(db, 1)
        async with queue.consume(db) as tasks:
            task = await anext(tasks)
            assert not task.lost
            await queue.release_all(db)
            await until(lambda: task.lost)
            with pytest.raises(NotTaken):
                await anext(tasks)

    assert renewals


@on_loop
async def test_a_body_learns_of_a_cancel_of_its_task(
    url: str, root: Subspace, renewals: list[list[Any]]
) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", "fifottl", ttr=60, root=root)
        await queue.put(db, 1)
        async with queue.consume(db) as tasks:
            task = await anext(tasks)
            await queue.cancel(db, task.id)
            await until(lambda: task.cancelled)

        assert (await numbers(db, queue))["taken"] == 0
    assert renewals


@on_database
async def test_a_cancelled_release_goes_on_to_its_end(db: aio.Database, queue: aio.TaskQueue) -> None:
    await queue.put(db, 1)
    tasks = queue.consume(db)
    await anext(tasks)
    await cancel_soon(tasks.aclose())
    await released(db, queue)

    assert await numbers(db, queue) == {"ready": 1, "taken": 0, "done": 0}


@on_database
async def test_a_cancel_during_the_ack_leaves_no_task_taken(db: aio.Database, queue: aio.TaskQueue) -> None:
    """Of many acks that combine, some are cancelled before the leader has claimed them."""
    gate, began = asyncio.Event(), []

    async def consume(db: aio.Database, queue: aio.TaskQueue) -> None:
        async with queue.consume(db, timeout=0) as tasks:
            async for task in tasks:
                began.append(task)
                await gate.wait()

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


@pytest.mark.parametrize("by", ["release_all", "close"])
@on_database
async def test_a_body_is_left_without_an_error_after_its_lease(
    db: aio.Database, queue: aio.TaskQueue, by: str
) -> None:
    """At a close, the end of the session has given its task back."""
    await queue.put(db, 1)
    async with queue.consume(db) as tasks:
        await anext(tasks)
        await (db.close() if by == "close" else queue.release_all(db))


@on_loop
async def test_a_loop_that_outlives_its_database_is_dropped(url: str, root: Subspace) -> None:
    db = await aio.open(url)
    queue = await aio.TaskQueue.create(db, "q", root=root)
    await queue.put(db, 1)
    tasks = queue.consume(db)
    await anext(tasks)
    await db.close()
    del tasks
    gc.collect()
    await asyncio.sleep(0.01)  # the strict loop of the test fails for an error that is only logged


@pytest.mark.parametrize("leave", [False, True])
@on_database
async def test_an_ack_that_did_not_commit_ends_no_lease(
    db: aio.Database, queue: aio.TaskQueue, leave: bool
) -> None:
    @aio.transactional
    async def ack_and_fail(tr: aio.Transaction, task: aio.HeldTask) -> None:
        await queue.ack(tr, task)
        raise KeyError

    await queue.put(db, 1)
    async with queue.consume(db, timeout=0) as tasks:
        async for task in tasks:
            with suppress(KeyError):
                await ack_and_fail(db, task)
            if leave:
                break

    expected = {"ready": 1, "taken": 0, "done": 0} if leave else {"ready": 0, "taken": 0, "done": 1}
    assert await numbers(db, queue) == expected


@on_database
async def test_each_loop_over_tasks_needs_an_iterator(db: aio.Database, queue: aio.TaskQueue) -> None:
    """A second loop over the same one would ack the task of the first, whose body still runs."""
    async with queue.consume(db) as tasks:
        first = asyncio.create_task(anext(tasks))
        await asyncio.sleep(0)
        with pytest.raises(InvalidArgument, match="once for each loop"):
            await anext(tasks)
        await queue.put(db, 1)

        assert (await first).data == 1


@on_database
async def test_an_iterator_goes_on_after_a_cancelled_take(db: aio.Database, queue: aio.TaskQueue) -> None:
    async with queue.consume(db) as tasks:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(tasks)
        await queue.put(db, 1)

        assert (await anext(tasks)).data == 1


@on_loop
async def test_a_close_waits_for_the_release_of_a_left_body(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"

    async def leave() -> None:
        async with aio.open(url) as db:
            queue = await aio.TaskQueue.open(db, "q")
            async for _ in queue.consume(db):
                raise KeyError

    async with aio.open(url) as keeper:
        queue = await aio.TaskQueue.create(keeper, "q")
        await queue.put(keeper, 1)
        with suppress(KeyError):
            await leave()
        gc.collect()

        assert await numbers(keeper, queue) == {"ready": 1, "taken": 0, "done": 0}
        assert (await queue.statistics(keeper))["calls"]["release"] == 1


@pytest.mark.parametrize("verb", ["ack", "release"])
@on_loop
async def test_the_outcome_of_a_body_is_claimed_before_its_verb(
    url: str, root: Subspace, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that is under way then finds no lease, which is no loss."""
    claims, settle = [], getattr(fdbqueue.TaskQueue, verb)

    def noted(queue: fdbqueue.TaskQueue, db: Any, task: Any) -> Any:
        claims.append(hold.open)
        return settle(queue, db, task)

    monkeypatch.setattr(fdbqueue.TaskQueue, verb, noted)
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put(db, 1)
        async with queue.consume(db, timeout=0) as tasks:
            async for task in tasks:
                hold: Any = task.hold
                if verb == "release":
                    break

    assert claims == [False]


@on_database
async def test_an_error_of_the_release_is_raised(
    db: aio.Database, queue: aio.TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.put(db, 1)
    tasks = queue.consume(db)
    await anext(tasks)
    monkeypatch.setattr(fdbqueue.TaskQueue, "release", planned_error)
    with pytest.raises(KeyError, match="planned"):
        await tasks.aclose()


def planned_error(*_: Any) -> None:
    raise KeyError("planned")


@on_database
async def test_the_lease_of_a_body_is_that_of_its_take(db: aio.Database, root: Subspace) -> None:
    async with aio.Session(db, "worker-1", root=root) as session:
        queue = await aio.TaskQueue.create(db, "q", root=root)
        await queue.put(db, 1)
        async for task in queue.consume(db, timeout=0, session=session):
            assert task.hold is not None
            assert (task.hold.session, task.hold.renewed_at) == (session.blocking, task.taken)


def test_an_iterator_may_be_dropped_in_a_thread_after_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", met.append)
    left: list[Any] = []

    async def leave() -> None:
        db = await aio.open("memory:")
        queue = await aio.TaskQueue.create(db, "q")
        await queue.put(db, 1)
        left.append(queue.consume(db))
        await anext(left[0])

    asyncio.run(leave())
    thread = threading.Thread(target=left.clear)
    thread.start()
    thread.join()

    assert met == []
