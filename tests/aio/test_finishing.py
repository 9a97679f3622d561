"""Calls that end something go on to their end if they are cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from tests.aio.support import cancel_soon, on_loop, until


def ends_of(owner: type, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each call of a blocking method that has returned."""
    ends, method = list[str](), getattr(owner, verb)

    def noted(self: Any, *args: Any) -> Any:
        result = method(self, *args)
        ends.append(verb)
        return result

    monkeypatch.setattr(owner, verb, noted)
    return ends


@on_loop
async def test_a_cancelled_close_of_a_proxy_goes_on_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        spool = await aio.PersistentQueue(db, "spool")
        await spool.put("x")
        await spool.get()
        ends = ends_of(fdbqueue.PersistentQueue, "close", monkeypatch)
        await cancel_soon(spool.close())
        async with asyncio.timeout(5):
            await until(lambda: ends == ["close"])


@on_loop
async def test_a_cancelled_end_of_a_session_goes_on_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db:
        session = await aio.Session(db, "worker-1")
        ends = ends_of(fdbqueue.Session, "end", monkeypatch)
        await cancel_soon(session.end())
        async with asyncio.timeout(5):
            await until(lambda: ends == ["end"])


@pytest.mark.parametrize("fails", [False, True])
@on_loop
async def test_a_cancelled_transaction_of_a_proxy_goes_on_to_its_end(tmp_path: Path, fails: bool) -> None:
    """It commits its puts, or gives its items back."""
    async with aio.open(f"embedded:{tmp_path / 'data'}") as db, aio.PersistentQueue(db, "spool") as spool:
        await spool.put("x")

        async def move() -> None:
            async with spool.transaction():
                await spool.ack(await spool.get())
                await spool.put("y")
                reached.set()
                if fails:
                    raise KeyError

        for turns in range(8):
            reached = asyncio.Event()
            moving = asyncio.create_task(move())
            await reached.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            moving.cancel()
            await asyncio.wait([moving])

            assert spool.unacked == []
            assert await spool.get() == ("x" if fails else "y")
            await spool.task_done()
            await spool.put("x")


@on_loop
async def test_a_cancelled_transaction_of_a_proxy_waits_for_no_room(url: str, root: Subspace) -> None:
    async with aio.open(url) as db, aio.PersistentQueue(db, "spool", maxsize=1, root=root) as spool:
        await spool.put("x")

        async def put_another() -> None:
            async with spool.transaction():
                await spool.put("y")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await put_another()
        assert await spool.get() == "x"
        await asyncio.sleep(0.05)

        assert await spool.empty()
