"""Coroutine functions for processes of a fleet."""

import asyncio

from fdbqueue import aio

SENT = b"sent"


@aio.transactional
async def add(tr: aio.Transaction, number: int) -> None:
    found = await tr.get(SENT)
    tr[SENT] = b"%d" % (number + int(bytes(found)) if found.present() else number)


async def send(task: aio.HeldTask) -> None:
    await add(task.database, task.data)


async def wait(task: aio.HeldTask) -> None:  # noqa: ARG001
    await asyncio.Event().wait()
