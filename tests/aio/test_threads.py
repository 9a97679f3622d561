"""The threads of a loop: work that must not stop it, and their end."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, TaskQueue, Worker, aio
from fdbqueue.aio.engines import CommitThread
from fdbqueue.aio.runtime import in_thread
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.embedded.transaction import Database as Engine
from fdbqueue.embedded.writes import CommitRequest, KeySet, WriteBuffer
from tests.aio.support import hub, on_loop, until


@on_loop
async def test_a_cancelled_call_outlasts_its_thread() -> None:
    """Otherwise the thread would work on what its caller has given up."""
    goes_on, ends = threading.Event(), list[bool]()

    def work() -> None:
        goes_on.wait()
        ends.append(True)

    here = hub()
    working = asyncio.create_task(here.call(lambda: in_thread(here, work)))
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.sleep(0.01)
    assert not working.done()
    goes_on.set()
    await asyncio.wait([working])

    assert ends == [True]


class SlowCommitter:
    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.batches: list[int] = []

    def commit_all(self, requests: Sequence[Any]) -> None:
        self.goes_on.wait()
        self.batches.append(len(requests))


class SlowStore:
    def __init__(self) -> None:
        self.committer = SlowCommitter()


def commit_threads() -> int:
    return sum(thread.name == "fdbqueue-commits" for thread in threading.enumerate())


@on_loop
async def test_a_commit_thread_ends_after_the_commits_that_wait() -> None:
    before, store, here = commit_threads(), SlowStore(), hub()
    commits: Any = CommitThread(here, store)  # type: ignore[arg-type]
    request = CommitRequest(WriteBuffer(), KeySet(), None, 0)
    first, second = (asyncio.create_task(here.call(lambda: commits.commit(request))) for _ in range(2))
    await asyncio.sleep(0)
    commits.end()
    store.committer.goes_on.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, second)
        await until(lambda: commit_threads() == before)

    assert sum(store.committer.batches) == 2


@on_loop
async def test_a_directory_is_closed_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, close = list[int](), Engine.close

    def noted(engine: Engine) -> None:
        threads.append(threading.get_ident())
        close(engine)

    monkeypatch.setattr(Engine, "close", noted)
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        await db.set(b"x", b"y")

    assert threads
    assert threading.get_ident() not in threads


def test_a_worker_leaves_no_thread(db: Database, space: Subspace) -> None:
    async def send(_: aio.HeldTask) -> None:
        """Do nothing."""

    before = {thread.name for thread in threading.enumerate()}
    queue = TaskQueue.create(db, "emails", root=space["root"])
    queue.put(db, 1)
    Worker(db, "emails", send, root=space["root"]).run(until_empty=True)
    asyncio.run(asyncio.wait_for(until(lambda: not _left(before)), 5))


def test_a_worker_that_finds_its_queue_gone_leaves_no_thread(db: Database, space: Subspace) -> None:
    """It looks for the queue once more on its loop."""

    async def send(_: aio.HeldTask) -> None:
        """Do nothing."""

    before = {thread.name for thread in threading.enumerate()}
    queue = TaskQueue.create(db, "emails", root=space["root"])
    worker = Worker(db, "emails", send, root=space["root"])
    queue.drop(db)
    with pytest.raises(QueueNotFound):
        worker.start()
    asyncio.run(asyncio.wait_for(until(lambda: not _left(before)), 5))


def _left(before: set[str]) -> set[str]:
    """The names of threads of a worker that go on."""
    own = {"fdbqueue-commits", "fdbqueue-loop", "fdbqueue-feeder"}
    return own & {thread.name for thread in threading.enumerate()} - before
