"""A cancelled call leaves the line, keeps nothing, and disturbs no other call."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import aio
from fdbqueue.aio.engines import LoopTransaction
from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import store
from fdbqueue.embedded.surface import PendingFuture
from fdbqueue.embedded.writes import CommitRequest
from tests.aio.support import cancel_soon, code_of, on_database, on_directory, on_loop, on_memory, until


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def waits_in_line(db: aio.Database, requests: int) -> None:
    """Return when this many calls have registered."""
    while db.counters.requests < requests:
        await asyncio.sleep(0.001)


@on_database
async def test_a_cancelled_take_leaves_the_task_to_another(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    waiting = asyncio.create_task(queue.take(db))
    await waits_in_line(db, 1)
    await cancel(waiting)
    await queue.put(db, 1)

    assert await queue.take(db, timeout=60) is not None
    assert (await aio.verify(db, "emails", root=root)).findings == ()


@on_database
async def test_a_cancelled_follower_leaves_its_leader_waiting(db: aio.Database, queue: aio.TaskQueue) -> None:
    leader, follower = (asyncio.create_task(queue.take(db, timeout=60)) for _ in range(2))
    await waits_in_line(db, 1)
    await cancel(follower)
    await queue.put(db, 1)

    assert await leader is not None


@on_database
async def test_a_cancelled_leader_leaves_the_line_to_its_followers(
    db: aio.Database, queue: aio.TaskQueue
) -> None:
    leader, *followers = (asyncio.create_task(queue.take(db, timeout=60)) for _ in range(3))
    await waits_in_line(db, 1)
    await cancel(leader)
    await queue.put_many(db, [1, 2])

    assert all(await asyncio.gather(*followers))


@on_database
async def test_cancels_at_any_moment_lose_no_task(db: aio.Database, queue: aio.TaskQueue) -> None:
    """Takes are cancelled after each number of turns of the loop: in the line, in a commit, at the answer."""
    await queue.put(db, 1)
    for turns in range(40):
        task = await cancelled_after(turns, queue.take(db, timeout=60))
        if task is not None:
            await queue.release(db, task)

    assert (await queue.take(db, timeout=60)) is not None


async def take_one(queue: aio.Queue, db: aio.Database) -> list[Any]:
    return [await queue.dequeue(db, timeout=60)]


async def take_many(queue: aio.Queue, db: aio.Database) -> list[Any]:
    return await queue.dequeue_many(db, 1)


@pytest.mark.parametrize("take", [take_one, take_many])
@on_database
async def test_cancels_at_any_moment_lose_no_item(
    db: aio.Database,
    root: Subspace,
    take: Callable[[aio.Queue, aio.Database], Coroutine[Any, Any, list[Any]]],
) -> None:
    queue = aio.Queue(root["items"])
    await queue.enqueue_many(db, [1, 2])
    for turns in range(40):
        await queue.give_back(db, await cancelled_after(turns, take(queue, db)) or [])

    assert await queue.dequeue_many(db, 10) == [1, 2]


@on_database
@pytest.mark.commits_by_hand
async def test_cancels_at_any_moment_leave_no_item_unacked(db: aio.Database, root: Subspace) -> None:
    async with aio.PersistentQueue(db, "spool", root=root) as spool:
        await spool.put("x")
        for turns in range(40):
            if await cancelled_after(turns, spool.get(timeout=60)) is None:
                assert spool.unacked == []
            else:
                await spool.task_done()
                await spool.put("x")

        assert await spool.qsize() == 1


@on_loop
async def test_a_close_waits_for_cancelled_calls(
    url: str, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its patience, a cancelled dequeue goes on alone, and gives its item back."""
    monkeypatch.setattr(limits, "CANCEL_PATIENCE_S", 0)
    queue = aio.Queue(root["items"])
    async with aio.open(url) as keeper:  # so that an engine in memory stays
        await queue.enqueue_many(keeper, [1, 2])
        for turns in range(20):
            async with aio.open(url) as db:
                item = await cancelled_after(turns, queue.dequeue(db, timeout=60))
                if item is not None:
                    await queue.give_back(db, [item])

        assert await queue.dequeue_many(keeper, 10) == [1, 2]


@on_database
async def test_a_failed_task_group_cancels_its_takes(db: aio.Database, queue: aio.TaskQueue) -> None:
    async def fail() -> None:
        raise KeyError("planned")

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012  # the group is the statement
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.take(db))
            await waits_in_line(db, 1)
            group.create_task(fail())

    assert raised.group_contains(KeyError)


@on_database
async def test_a_cancel_scope_of_anyio_ends_a_take(db: aio.Database, queue: aio.TaskQueue) -> None:
    with anyio.move_on_after(0.05) as scope:
        await queue.take(db)

    assert scope.cancelled_caught
    await queue.put(db, 1)
    assert await queue.take(db, timeout=60) is not None


@on_database
async def test_a_cancelled_body_commits_nothing(db: aio.Database, root: Subspace) -> None:
    begun = asyncio.Event()

    @aio.transactional
    async def write(tr: Any) -> None:
        tr[root["x"].key()] = b"x"
        begun.set()
        await asyncio.sleep(60)

    writing = asyncio.create_task(write(db))
    await begun.wait()
    await cancel(writing)

    assert await db.get(root["x"].key()) is None


@on_database
async def test_a_cancelled_watch_is_cancelled_in_the_engine(db: aio.Database, root: Subspace) -> None:
    tr = db.create_transaction()
    watch = tr.watch(root["x"].key())
    await tr.commit()

    async def wait() -> None:
        await watch

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await cancel(waiting)

    while not watch.is_ready():
        await asyncio.sleep(0.001)


@on_database
async def test_a_stop_event_of_the_caller_still_counts(db: aio.Database, queue: aio.TaskQueue) -> None:
    for stop in (db.blocking.runtime.event(), asyncio.Event()):
        waiting = asyncio.create_task(queue.take(db, stop=stop))
        await asyncio.sleep(0)
        stop.set()
        with pytest.raises(Exception, match="stop"):
            await waiting


@on_memory
async def test_a_cancel_in_doubt_repeats_no_call_of_another(
    db: aio.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is cancelled between an unknown result and its retry, which would have found the receipt."""
    queue = aio.Queue(Subspace(("items",)))
    retrying = db.blocking.runtime.event()
    commit = LoopTransaction.step_commit

    def commit_and_lose_the_answer(tr: LoopTransaction, request: CommitRequest) -> None:
        db.blocking.runtime.sleep(0)  # the second call joins
        commit(tr, request)
        raise FDBError(1021)

    def wait_before_the_retry(*_: object) -> Any:
        retrying.set()
        return PendingFuture(db.blocking.runtime)

    monkeypatch.setattr(LoopTransaction, "step_commit", commit_and_lose_the_answer)
    monkeypatch.setattr(LoopTransaction, "on_error", wait_before_the_retry)
    first = asyncio.create_task(queue.enqueue(db, 0))
    await asyncio.sleep(0)
    leader, follower = (asyncio.create_task(queue.enqueue(db, number)) for number in (1, 2))
    first.cancel()  # before its commit, so it passes the lead on to two callers at once
    await until(retrying.is_set)
    monkeypatch.undo()
    await cancel(leader)
    code = await code_of(follower)

    assert (code, sorted(await queue.dequeue_many(db, 10))) == (1021, [1, 2])


@pytest.mark.parametrize("item", [None, 5, "text"])
@on_directory
async def test_a_cancelled_dequeue_gives_back_any_item(db: aio.Database, item: Any) -> None:
    queue = aio.Queue(Subspace(("items",)))
    fair = aio.FairQueue(Subspace(("fair",)), key=str)
    await queue.enqueue(db, item)
    await fair.put(db, item)
    for taken in (queue.dequeue(db, 5), fair.get(db)):
        taking = asyncio.create_task(taken)
        await asyncio.sleep(0)
        await cancel(taking)

    assert (await queue.size(db), await fair.size(db)) == (1, 1)


@on_directory
async def test_a_cancelled_get_gives_back_the_cost_of_its_item(db: aio.Database) -> None:
    """The dear item comes after the cheap ones of another key."""
    fair = aio.FairQueue(Subspace(("fair",)), key=lambda item: item[0])
    await fair.put(db, "a1", cost=9)
    await cancel_soon(fair.get(db))
    await until_size(fair, db, 1)
    for item in ("b1", "b2"):
        await fair.put(db, item)

    assert [await fair.get(db) for _ in range(3)] == ["b1", "b2", "a1"]


async def until_size(fair: aio.FairQueue, db: aio.Database, size: int) -> None:
    while await fair.size(db) != size:
        await asyncio.sleep(0.001)


@on_loop
async def test_a_cancelled_close_goes_on_to_its_end(url: str, root: Subspace) -> None:
    db = await aio.open(url)
    emails = await aio.TaskQueue.create(db, "emails", root=root)
    await emails.put(db, 1)
    await emails.take(db)
    await cancel_soon(db.close())
    await until(lambda: db.blocking.closed)
    with pytest.raises(DatabaseClosed):
        await emails.put(db, 1)
    async with aio.open(url) as again:
        if not url.startswith("memory"):
            emails = await aio.TaskQueue.open(again, "emails", root=root)
            assert (await emails.statistics(again))["tasks"]["ready"] == 1


@on_loop
async def test_a_commit_after_the_close_is_refused(url: str, root: Subspace) -> None:
    if url.startswith("fdb:"):
        pytest.skip("a transaction of the binding outlives our database")
    db = await aio.open(url)
    tr = db.create_transaction()
    tr[root["x"].key()] = b"x"
    await db.close()
    with pytest.raises(DatabaseClosed):
        await tr.commit()


@on_directory
async def test_a_cancel_of_all_tasks_leaves_the_database_usable(
    db: aio.Database, queue: aio.TaskQueue
) -> None:
    """As programs do at their end: that cancels the fibers without a caller, too."""
    await queue.put_many(db, [1, 2])
    taking = asyncio.create_task(queue.take(db))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if task.get_coro().__name__ != "_strictly":  # type: ignore[union-attr]
            task.cancel()
    await asyncio.wait([taking])

    assert await queue.take(db, timeout=60) is not None


@on_memory
async def test_a_timeout_ends_calls_that_never_wait(db: aio.Database) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012  # the timeout is the statement
        async with asyncio.timeout(0.05):
            while True:
                await db.set(b"x", b"y")


async def cancelled_after(turns: int, call: Coroutine[Any, Any, Any]) -> Any:
    """Cancel the call when the loop has turned this often. Return its result, if it was done before."""
    calling = await cancel_soon(call, turns)
    return None if calling.cancelled() else calling.result()


async def opened(opening: Awaitable[Any]) -> Any:
    return await opening


@on_loop
async def test_a_cancelled_opening_leaves_no_directory_open(tmp_path: Path) -> None:
    for turns in range(8):
        path, before = tmp_path / str(turns), threading.active_count()
        db = await cancelled_after(turns, opened(aio.open(f"embedded:{path}")))
        if db is not None:
            await db.close()
        await until(lambda before=before: threading.active_count() <= before)  # type: ignore[misc]

        assert str(path) not in store._stores


@on_database
async def test_a_cancelled_opening_leaves_no_session(db: aio.Database, root: Subspace) -> None:
    for turns in range(12):
        session = await cancelled_after(turns, opened(aio.Session(db, "worker-1", root=root)))
        if session is not None:
            await session.end()

        assert await db.get(RootKeys(root).session_named("worker-1")) is None


@on_database
async def test_a_cancelled_lock_is_unlocked(db: aio.Database, root: Subspace) -> None:
    queue = aio.ElementQueue(root["elements"], {"body": "string"})
    name = await queue.add(db, {"body": "x"})
    for turns in range(20):
        if await cancelled_after(turns, queue.lock(db, name)):
            await queue.unlock(db, name)

    assert await queue.lock(db, name)


@on_database
async def test_a_call_forgets_the_stop_event_that_it_was_given(
    db: aio.Database, queue: aio.TaskQueue
) -> None:
    await queue.put(db, 1)
    stop = db.blocking.runtime.event()
    await queue.take(db, timeout=60, stop=stop)

    assert not stop._listeners._callbacks  # type: ignore[attr-defined]


@on_loop
async def test_a_closed_dequeue_gives_back_its_item(tmp_path: Path) -> None:
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        queue = aio.Queue(Subspace(("items",)))
        await queue.enqueue(db, 1)
        dequeuing = queue.dequeue(db)
        dequeuing.send(None)  # until it waits for its commit
        dequeuing.close()
        await db.close()
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        assert await queue.size(db) == 1
