"""Setup and teardown of a worker on the loop of its caller."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fdbqueue import aio
from fdbqueue.core.errors import InvalidArgument
from tests.aio.support import on_database

pytestmark = pytest.mark.usefixtures("workers_end_soon")


async def handler(_: Any) -> None: ...


@on_database
async def test_each_runs_once_on_the_loop_of_the_caller(db: aio.Database, queue: aio.TaskQueue) -> None:
    told: list[Any] = []

    async def begin() -> None:
        await asyncio.sleep(0)
        told.append(("setup", asyncio.get_running_loop()))

    async def handle(task: Any) -> None:
        told.append((task.data, asyncio.get_running_loop()))

    async def end() -> None:
        await queue.put(db, "left by the teardown")
        told.append(("teardown", asyncio.get_running_loop()))

    await queue.put(db, "x")
    await aio.Worker(db, queue, handle, setup=begin, teardown=end).run(until_empty=True)

    assert told == [(what, asyncio.get_running_loop()) for what in ("setup", "x", "teardown")]
    assert (await queue.statistics(db))["tasks"]["ready"] == 1


@on_database
async def test_a_setup_that_fails_is_called_again(db: aio.Database, queue: aio.TaskQueue) -> None:
    fails: list[BaseException] = [asyncio.CancelledError(), SystemExit(3), ValueError()]

    async def begin() -> None:
        await asyncio.sleep(0)
        if fails:
            raise fails.pop()

    await queue.put(db, "x")
    await aio.Worker(db, queue, handler, setup=begin).run(until_empty=True)

    assert fails == []
    assert (await queue.statistics(db))["ends"]["acked"] == 1


@on_database
async def test_a_cancelled_run_ends_the_wait_for_a_setup(db: aio.Database, queue: aio.TaskQueue) -> None:
    called = asyncio.Event()

    def begin() -> None:
        called.set()
        raise ValueError

    running = asyncio.create_task(aio.Worker(db, queue, handler, setup=begin).run())
    await called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def generator() -> Iterator[None]:
    yield


async def asynchronous_generator() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("name", ["setup", "teardown"])
@pytest.mark.parametrize("wrong", [1, generator, asynchronous_generator, lambda needed: needed])
@on_database
async def test_what_cannot_be_called_once_is_refused(
    db: aio.Database, queue: aio.TaskQueue, name: str, wrong: Any
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        aio.Worker(db, queue, handler, **{name: wrong})
    assert caught.value.name == name
