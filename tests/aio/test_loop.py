"""The loop never waits, and waiting calls cost no threads. Its threads end with their work."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import fdbqueue
from fdbqueue import Database, TaskQueue, Worker, aio
from fdbqueue.aio.engines import CommitThread
from fdbqueue.aio.runtime import in_thread
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.embedded import commit
from fdbqueue.embedded.transaction import Database as Engine
from fdbqueue.embedded.writes import CommitRequest, KeySet, WriteBuffer
from tests.aio.support import hub, on_database, on_loop, until

SLOW_S = 10.0  # a loaded machine takes longer than usual for any step


@on_database
async def test_a_slow_disk_does_not_stop_the_loop(
    db: aio.Database,
    queue: aio.TaskQueue,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A commit that ends when the loop has turned: asyncio reports no step of the loop as slow."""
    if not url.startswith("embedded"):
        pytest.skip("only a directory waits for a disk")
    committed, turned = commit.Batches.commit, threading.Event()

    def slowly(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(turned.set)
        turned.wait(2 * SLOW_S)
        return committed(*arguments)

    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = SLOW_S
    monkeypatch.setattr(commit.Batches, "commit", slowly)
    with caplog.at_level(logging.WARNING, "asyncio"):
        await asyncio.gather(*(queue.put(db, number) for number in range(10)))
    monkeypatch.undo()
    loop.set_debug(False)

    assert [record.message for record in caplog.records if "took" in record.message] == []


@on_database
async def test_waiting_takes_share_their_threads(db: aio.Database, queue: aio.TaskQueue) -> None:
    counts = []
    for more in (1, 200):
        begun = [asyncio.create_task(queue.take(db, timeout=60)) for _ in range(more)]
        await queue.put(db, 1)
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        counts.append(threading.active_count())

    assert counts[1] <= counts[0]  # a thread of an earlier test may have ended


@on_database
async def test_the_commits_of_one_turn_share_a_batch(
    db: aio.Database, url: str, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not url.startswith("embedded"):
        pytest.skip("only a directory has batches")
    sizes: list[int] = []
    committed = commit.Batches.commit

    def counted(self: Any, requests: Any, pool: Any) -> Any:
        sizes.append(len(requests))
        return committed(self, requests, pool)

    monkeypatch.setattr(commit.Batches, "commit", counted)
    await asyncio.gather(*(db.set(root.pack((number,)), b"x") for number in range(100)))

    assert sum(sizes) == 100
    assert len(sizes) <= 10


class EarlyLoop(asyncio.SelectorEventLoop):
    """Its timers are early. Those of uvloop are, as it counts time in whole milliseconds."""

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        return super().call_at(when - 0.002, *args, **kwargs)


def test_a_backoff_is_waited_for_though_timers_are_early(url: str, root: Subspace) -> None:
    count = root.pack(("count",))

    @aio.transactional
    async def add(tr: aio.Transaction) -> None:
        found = await tr.get(count)
        await asyncio.sleep(0)
        tr[count] = (bytes(found) if found.present() else b"") + b"."

    async def add_at_once() -> bytes | None:
        async with aio.open(url) as db:
            await asyncio.gather(*(add(db) for _ in range(10)))
            return await db.get(count)

    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        assert runner.run(add_at_once()) == b"." * 10


@on_database
async def test_a_span_of_the_caller_is_current_in_a_body(db: aio.Database, root: Subspace) -> None:
    tracer = TracerProvider().get_tracer("test")

    @fdbqueue.transactional
    def current(tr: Any) -> Any:
        tr[root["x"].key()].present()
        return trace.get_current_span().get_span_context().span_id

    async def ask() -> bool:
        with tracer.start_as_current_span("caller") as span:
            await asyncio.sleep(0)
            same: bool = await current(db) == span.get_span_context().span_id
            return same

    assert await asyncio.gather(*(ask() for _ in range(5))) == [True] * 5


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
