"""Calls of fdbqueue.aio that mypy must accept. tests/test_types.py checks this file; nothing runs it."""

from typing import Any

import fdbqueue
from fdbqueue import aio


@aio.transactional
async def place(tr: aio.Transaction, emails: aio.TaskQueue, number: int) -> dict[str, Any]:
    if (await tr.get(b"order")).present():
        return {}
    tr[b"order"] = b"placed"
    await emails.put(tr, {"order": number}, delay=3)
    return {"order": number}


@aio.transactional(retry_limit=3)
async def count(tr: aio.Transaction) -> int:
    return len(await tr.get_range(b"a", b"b")) + len([row.key async for row in tr.get_range(b"a", b"b")])


class Orders:
    @aio.transactional
    async def place(self, tr: aio.Transaction, number: int) -> bool:
        return (await tr.get(b"%d" % number)).present() is True


calls = fdbqueue.Tasks("calls")


@calls.task(result_ttl=60)
async def add(first: int, second: int = 1) -> int:
    await aio.current_task().progress(0.5)
    return first + second


@calls.task(transactional=True)
async def note(tr: aio.Transaction, number: int) -> None:
    tr[b"number"] = b"%d" % number


async def send(task: aio.HeldTask) -> None:
    await task.progress(0.5)
    await task.database.set(b"sent", b"yes")


async def main() -> None:
    async with aio.open("memory:", session_ttr_s=30.0) as db:
        words = await aio.TaskQueue.create(db, "words", "fifottl", ttr=60)
        task: fdbqueue.Task | None = await words.take(db, timeout=30)
        tasks: list[fdbqueue.Task] = await words.put_many(db, ["a", "b"], pri=3)
        async for each in words.consume(db, timeout=0):
            await words.ack(db, each)
        async with aio.Session(db, "worker-1") as session:
            task = await words.take(db, session=session)
        emails = aio.Queue(fdbqueue.Subspace(("emails",)), codec="msgpack")
        await emails.enqueue(db, 1)
        found: Any = await emails.dequeue(db, default=None, timeout=1.5)
        spool = await aio.PersistentQueue(db, "spool", ttr=3)
        waiting: int = await spool.qsize()
        proxy: aio.Proxy = await spool.connect()
        placed: dict[str, Any] = await place(db, words, 17)
        placed = await place(db.create_transaction(), words, 17)
        number: int = await count(db)
        right: bool = await Orders().place(db, 3)
        number = await db.run(lambda tr: len(tr.get_range(b"a", b"b").to_list()))
        verification: fdbqueue.Verification = await aio.verify(db)
        put: fdbqueue.Task = await add.put(db, 1, second=2)
        put = await note.put(db.create_transaction(), 3)
        number = await add(1) or await add.result(db, put, timeout=3)
        await aio.Worker(db, words, calls).run(until_empty=True)
        await aio.Worker(db, words, send, concurrency=3).run(until_empty=True)
        fdbqueue.Worker(db.blocking, "words", send, concurrency=3).run()


async def refuse(db: aio.Database) -> None:
    words = await aio.TaskQueue.open(db, "words")
    await words.put(db)  # type: ignore[call-arg]
    await add.put(db, "1")  # type: ignore[call-overload]
    await words.take(db, timeot=3)  # type: ignore[call-arg]
    await place(db, words, "17")  # type: ignore[arg-type]
    await place("memory:", words, 17)  # type: ignore[arg-type]
    await aio.Queue(fdbqueue.Subspace(("emails",)), codek="json").size(db)  # type: ignore[call-arg]
    size: str = await aio.Queue(fdbqueue.Subspace(("emails",))).size(db)  # type: ignore[assignment]
