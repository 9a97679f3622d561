"""Steps of handlers: what an attempt has done, the next one does not do again."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Database, TaskQueue, Worker, aio, transactional
from fdbqueue.core.errors import InvalidArgument
from tests.fleet.conftest import SOON
from tests.guard import TEST_ROOT

Work = Callable[..., list[tuple[str, Any]]]
EFFECT = TEST_ROOT[os.urandom(8)].key()


def fail_once(task: Any) -> None:
    if task.failures == 0:
        raise ValueError("between two steps")


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_step_in_a_transaction_has_its_effect_once(
    db: Database, queue: TaskQueue, work: Work, in_transaction: bool
) -> None:
    def count(tr: Any) -> int:
        tr.add(EFFECT, b"\x01")
        return 7

    def handler(*given: Any) -> None:
        *trs, task = given
        step = lambda tr: task.step(tr, "count", count)  # noqa: E731
        assert (step(trs[0]) if trs else run(task.database, step)) == 7
        fail_once(task)

    queue.put(db, "x")
    assert work(handler, transactional=in_transaction) == [("retried", "x"), ("succeeded", "x")]
    assert db[EFFECT] == b"\x01"
    del db[EFFECT]


def run(db: Database, body: Callable[[Any], Any]) -> Any:
    return transactional(body, parameter="tr")(db)


def test_a_transactional_handler_has_steps_in_its_transaction(
    db: Database, queue: TaskQueue, work: Work
) -> None:
    def handler(_: Any, task: Any) -> None:
        with pytest.raises(InvalidArgument, match="steps outside"):
            task.step("charge", lambda: 1)
        with pytest.raises(InvalidArgument, match="name, function"):
            task.step("charge")

    queue.put(db, "x")
    assert work(handler, transactional=True) == [("succeeded", "x")]


def test_a_coroutine_has_steps_that_are_coroutines(db: Database, space: Any, queue: TaskQueue) -> None:
    ran: list[str] = []

    async def handler(task: aio.HeldTask) -> None:
        async def charge() -> int:
            ran.append("charge")
            await task.database.get(EFFECT)
            return 7

        async def count(tr: aio.Transaction) -> str:
            await tr.get(EFFECT)
            tr[EFFECT] = b"\x01"
            return "counted"

        @aio.transactional
        async def both(tr: aio.Transaction) -> str:
            return await task.step(tr, "count", count)

        assert await task.step("charge", charge) == 7
        assert await both(task.database) == "counted"
        assert await task.step("plain", lambda: ran.append("plain")) is None
        fail_once(task)

    queue.put(db, "x")
    Worker(db, queue, handler, backoff=SOON, root=space).run(until_empty=True)
    assert ran == ["charge", "plain"]
    assert queue.statistics(db)["tasks"]["total"] == 0
    del db[EFFECT]


def test_programs_with_coroutines_have_steps_too(space: Any) -> None:
    async def body(loop_db: aio.Database) -> None:
        queue = await aio.TaskQueue.create(loop_db, "own", root=space)
        await queue.put(loop_db, "x")
        task = await queue.take(loop_db, 0)
        assert task is not None

        async def charge() -> int:
            return 7

        @aio.transactional
        async def mail(tr: aio.Transaction) -> str:
            async def send(inner: aio.Transaction) -> str:
                assert inner is tr
                return "sent"

            return await queue.step(tr, task, "mail", send)

        for _ in range(2):
            assert await queue.step(loop_db, task, "charge", charge) == 7
            assert await mail(loop_db) == "sent"
        assert await queue.steps(loop_db, task) == ["charge", "mail"]
        await queue.ack(loop_db, task)

    async def main() -> None:
        async with aio.open("memory:") as loop_db:
            await body(loop_db)

    asyncio.run(main())
