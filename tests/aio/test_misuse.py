"""A misuse of fdbqueue.aio gets one sentence that says what to do."""

import asyncio
import os
import threading
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    BlockingCall,
    DatabaseClosed,
    DeferredResult,
    InvalidArgument,
    NotADatabase,
    WrongFace,
    WrongLoop,
)
from fdbqueue.core.root_keys import RootKeys
from tests.aio.support import on_database, on_loop, on_memory


@on_database
async def test_a_blocking_queue_refuses_a_database_of_the_loop(db: aio.Database, root: Subspace) -> None:
    queue = fdbqueue.Queue(root["items"])
    for target in (db, db.create_transaction()):
        with pytest.raises(WrongFace, match=r"fdbqueue\.aio"):
            queue.enqueue(target, 1)


@on_database
async def test_an_awaited_verb_refuses_a_blocking_database(db: aio.Database, root: Subspace) -> None:
    queue = aio.Queue(root["items"])
    for target in (db.blocking, db.blocking.create_transaction()):
        with pytest.raises(WrongFace, match=r"\.blocking"):
            await queue.enqueue(target, 1)


@on_loop
async def test_an_awaited_verb_needs_a_database(root: Subspace) -> None:
    with pytest.raises(NotADatabase):
        await aio.Queue(root["items"]).enqueue("embedded:", 1)  # type: ignore[arg-type]


@on_memory
async def test_a_call_that_would_block_the_loop_is_refused(db: aio.Database, root: Subspace) -> None:
    queue = fdbqueue.Queue(root["items"])
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


@on_database
async def test_another_thread_may_not_use_the_database(db: aio.Database, root: Subspace) -> None:
    queue = fdbqueue.Queue(root["items"])
    with pytest.raises(WrongLoop, match=r"fdbqueue\.open"):
        await asyncio.to_thread(queue.enqueue, db.blocking, 1)
    assert await aio.Queue(root["items"]).size(db) == 0


def test_another_thread_may_end_what_an_ended_loop_has_left(
    url: str, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a program, where sessions end."""

    async def leave() -> None:
        database = await aio.open(url)
        left.append((database.blocking, await aio.Session(database, "worker-1", root=root)))

    left: list[Any] = []
    thread = threading.Thread(target=lambda: asyncio.run(leave()))
    thread.start()
    thread.join()
    ((database, session),) = left
    key = RootKeys(root).session_named("worker-1")
    assert database[key] is not None
    session.blocking.end()
    assert database[key] is None
    monkeypatch.setattr(limits, "CLOSE_TIMEOUT_S", 0)  # the fibers of that loop never end
    database.close()


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


@on_memory
async def test_an_awaited_batch_is_no_text_bytes_or_mapping(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    for one in ("abc", b"abc", {"a": 1}):
        with pytest.raises(InvalidArgument, match="must be several values"):
            await queue.put_many(db, one)
        with pytest.raises(InvalidArgument, match="must be several values"):
            await aio.Queue(root["items"]).enqueue_many(db, one)


@on_memory
async def test_an_object_that_was_not_opened_says_so(db: aio.Database) -> None:
    with pytest.raises(InvalidArgument, match="awaited or entered"):
        await aio.PersistentQueue(db, "spool").put(1)


@on_loop
async def test_a_set_of_queues_refuses_a_blocking_database() -> None:
    with fdbqueue.open("memory:") as blocking, pytest.raises(WrongFace):
        await aio.QueueSet().first(blocking)  # type: ignore[arg-type]


@aio.transactional
async def touch(tr: aio.Transaction) -> None:
    tr[b"touched"] = b""


@on_database
async def test_calls_of_one_transaction_or_loop_refuse_the_other_face(
    db: aio.Database, queue: aio.TaskQueue
) -> None:
    for target in (db.blocking, db.blocking.create_transaction()):
        with pytest.raises(WrongFace, match=r"\.blocking"):
            await touch(target)
        with pytest.raises(WrongFace, match=r"\.blocking"):
            queue.consume(target)  # type: ignore[arg-type]
        with pytest.raises(WrongFace, match=r"\.blocking"):
            aio.Worker(target, "emails", touch)  # type: ignore[arg-type]
    with pytest.raises(NotADatabase, match="a snapshot"):
        await queue.put(db.create_transaction().snapshot, 1)  # type: ignore[arg-type]
    with pytest.raises(NotADatabase, match=r"aio\.open"):
        await touch("memory:")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"aio\.Database"):
        queue.consume(db.create_transaction())  # type: ignore[arg-type]


@on_loop
async def test_a_database_that_is_not_awaited_says_so() -> None:
    opening: Any = aio.open("memory:")
    with pytest.raises(NotADatabase, match=r"aio\.open"):
        await aio.TaskQueue.create(opening, "emails")
    with pytest.raises(AttributeError, match=r"await aio\.open"):
        opening.get(b"x")


@on_memory
async def test_a_future_that_is_not_awaited_says_so(db: aio.Database) -> None:
    future: Any = db.create_transaction().get(b"x")
    with pytest.raises(AttributeError, match="await it first"):
        future.present()


@pytest.mark.filterwarnings("default::RuntimeWarning")
@on_memory
async def test_a_forgotten_await_names_its_verb(db: aio.Database, root: Subspace) -> None:
    with pytest.warns(RuntimeWarning, match="'Queue.enqueue' was never awaited"):
        aio.Queue(root["items"]).enqueue(db, 1)
    with pytest.warns(RuntimeWarning, match="'TaskQueue.create' was never awaited"):
        aio.TaskQueue.create(db, "emails")


@on_database
async def test_a_coroutine_function_is_not_run_as_blocking_code(db: aio.Database) -> None:
    calls: tuple[Any, ...] = (db.run, db.run_blocking, db.create_transaction().run_blocking)
    for call in calls:
        with pytest.raises(DeferredResult, match=r"aio\.transactional"):
            await call(touch)


@on_database
async def test_another_loop_reads_and_commits_nothing(db: aio.Database, root: Subspace) -> None:
    tr = db.create_transaction()
    tr[root["x"].key()] = b"x"

    async def read() -> None:
        await tr.get(root["x"].key())

    async def commit() -> None:
        await tr.commit()

    for use in (read, commit):
        with pytest.raises(WrongLoop, match="Another event loop"):
            await asyncio.to_thread(asyncio.run, use())
    assert await db.get(root["x"].key()) is None
