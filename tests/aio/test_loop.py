"""The loop never waits, and waiting calls cost no threads."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import fdbqueue
from fdbqueue import aio
from fdbqueue.embedded import commit
from tests.aio.support import on_database

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
