"""A fleet beside an event loop, and the diagnosis of a database."""

import asyncio
import os
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import aio
from fdbqueue.core.errors import DatabaseNotFound, InvalidArgument, QueueNotFound
from tests.aio.handlers import SENT
from tests.aio.support import on_database, on_loop, until

SEND = "tests.aio.handlers:send"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"embedded:{tmp_path / 'data'}"
    with fdbqueue.open(url) as db:
        fdbqueue.TaskQueue.create(db, "emails", "fifottl", ttr=60).put_many(db, list(range(50)))
    return url


@on_database
async def test_a_fleet_works_until_its_queues_are_empty(db: aio.Database, url: str) -> None:
    turns: list[None] = []
    turns_at_ticks: list[int] = []
    fleet = aio.Fleet(url, "emails", SEND, processes=2, until_empty=True)
    turning = asyncio.create_task(turn(turns))
    await fleet.run(lambda _: turns_at_ticks.append(len(turns)))
    turning.cancel()

    assert fleet.status().tally.done == 50
    assert turns_at_ticks[0] < turns_at_ticks[-1]
    assert int(await db.get(SENT) or b"0") == sum(range(50))


async def turn(turns: list[None]) -> None:
    """Count the turns of the loop."""
    while True:
        await asyncio.sleep(0.001)
        turns.append(None)


@on_database
async def test_a_cancelled_fleet_ends_its_processes(db: aio.Database, url: str) -> None:
    fleet = aio.Fleet(url, "emails", "tests.aio.handlers:wait", processes=1, grace_s=0.1)
    running = asyncio.create_task(fleet.run())
    await until(lambda: bool(fleet.status().running))
    (process,) = fleet.status().processes
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert not os.path.exists(f"/proc/{process.process_id}")
    emails = await aio.TaskQueue.open(db, "emails")
    assert (await emails.statistics(db))["tasks"]["taken"] == 0


@on_loop
async def test_a_second_cancel_stops_a_fleet_at_once(url: str) -> None:
    fleet = aio.Fleet(url, "emails", "tests.aio.handlers:wait", processes=1, grace_s=3600)
    running = asyncio.create_task(fleet.run())
    await until(lambda: bool(fleet.status().running))
    running.cancel()
    await until(lambda: fleet.status().processes[0].state == "stopping")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@on_loop
async def test_an_error_of_on_tick_ends_the_fleet(url: str) -> None:
    def refuse(status: fdbqueue.FleetStatus) -> None:
        raise ZeroDivisionError(status)

    with pytest.raises(ZeroDivisionError):
        await aio.Fleet(url, "emails", SEND, processes=1).run(refuse)


@on_loop
async def test_a_fleet_is_refused_before_it_starts_a_process(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        aio.Fleet(url, "emails", SEND, processes=0)
    with pytest.raises(QueueNotFound):
        await aio.Fleet(url, "letters", SEND).run()
    with pytest.raises(DatabaseNotFound):
        await aio.Fleet(f"embedded:{tmp_path / 'none'}", "emails", SEND).run()


@on_loop
async def test_a_diagnosis_leaves_the_loop_free(url: str) -> None:
    async with aio.open(url) as db:
        turns: list[None] = []
        turning = asyncio.create_task(turn(turns))
        diagnosis = await aio.diagnose(db, watch_s=0.1)
        turning.cancel()

    assert turns
    assert {"directory", "latency", "queues"} <= {check.name for check in diagnosis.checks}
