"""A misuse of fdbqueue.aio gets one sentence that says what to do."""

import asyncio
import os

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.errors import (
    BlockingCall,
    DatabaseClosed,
    InvalidArgument,
    NotADatabase,
    WrongFace,
    WrongLoop,
)
from tests.aio.support import on_loop


@on_loop
async def test_a_blocking_queue_refuses_a_database_of_the_loop(url: str, root: Subspace) -> None:
    queue = fdbqueue.Queue(root["items"])
    async with aio.open(url) as db:
        for target in (db, db.create_transaction()):
            with pytest.raises(WrongFace, match=r"fdbqueue\.aio"):
                queue.enqueue(target, 1)


@on_loop
async def test_an_awaited_verb_refuses_a_blocking_database(url: str, root: Subspace) -> None:
    queue = aio.Queue(root["items"])
    async with aio.open(url) as db:
        for target in (db.blocking, db.blocking.create_transaction()):
            with pytest.raises(WrongFace, match=r"\.blocking"):
                await queue.enqueue(target, 1)


@on_loop
async def test_an_awaited_verb_needs_a_database(root: Subspace) -> None:
    with pytest.raises(NotADatabase):
        await aio.Queue(root["items"]).enqueue("embedded:", 1)  # type: ignore[arg-type]


@on_loop
async def test_a_call_that_would_block_the_loop_is_refused(root: Subspace) -> None:
    queue = fdbqueue.Queue(root["items"])
    async with aio.open("memory:") as db:
        with pytest.raises(BlockingCall, match="await"):
            queue.dequeue(db.blocking, timeout=1)


def test_a_database_belongs_to_the_loop_that_opened_it(url: str, root: Subspace) -> None:
    opened: list[aio.Database] = []

    async def open_and_leave() -> None:
        opened.append(await aio.open(url))

    async def use() -> None:
        db = opened[0]
        with pytest.raises(WrongLoop, match="closed"):
            await aio.Queue(root["items"]).enqueue(db, 1)
        with pytest.raises(WrongLoop, match=r"aio\.open"):
            db.create_transaction()

    asyncio.run(open_and_leave())
    asyncio.run(use())
    opened[0].blocking.close()  # the loop has gone, so this blocks


@on_loop
async def test_a_closed_database_refuses_calls(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        pass
    with pytest.raises(DatabaseClosed):
        await aio.Queue(root["items"]).enqueue(db, 1)


@on_loop
async def test_another_thread_may_not_use_the_database(url: str, root: Subspace) -> None:
    queue = fdbqueue.Queue(root["items"])
    async with aio.open(url) as db:
        with pytest.raises(WrongLoop, match=r"fdbqueue\.open"):
            await asyncio.to_thread(queue.enqueue, db.blocking, 1)
        assert await aio.Queue(root["items"]).size(db) == 0


def test_a_forked_child_may_not_use_the_database() -> None:
    async def fork_and_use() -> int:
        async with aio.open("memory:") as db:
            child = os.fork()
            if child == 0:
                os._exit(await used_in_child(db))
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            return os.waitstatus_to_exitcode(status)

    assert asyncio.run(fork_and_use()) == 17


async def used_in_child(db: aio.Database) -> int:
    try:
        await db.set(b"x", b"y")
    except WrongLoop as error:
        return 17 if "forked" in str(error) else 18
    return 19


@on_loop
async def test_an_object_that_was_not_opened_says_so() -> None:
    async with aio.open("memory:") as db:
        with pytest.raises(InvalidArgument, match="awaited or entered"):
            await aio.PersistentQueue(db, "spool").put(1)


@on_loop
async def test_a_set_of_queues_refuses_a_blocking_database() -> None:
    with fdbqueue.open("memory:") as blocking, pytest.raises(WrongFace):
        await aio.QueueSet().first(blocking)  # type: ignore[arg-type]
