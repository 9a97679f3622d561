"""What a handler stores: its value, in the transaction of its ack, and the steps that no attempt repeats."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Done, TaskQueue, Worker, aio, transactional
from fdbqueue.core.errors import InvalidArgument, TaskFailed
from tests.fleet.conftest import SOON
from tests.guard import TEST_ROOT

Work = Callable[..., list[tuple[str, Any]]]

EFFECT = TEST_ROOT[os.urandom(8)].key()


def plain(task: Any) -> Any:
    return {"sent": task.data}


def transactional_plain(tr: Any, task: Any) -> Any:
    tr[EFFECT] = b"\x01"
    return {"sent": task.data}


async def coroutine(task: Any) -> Any:
    await asyncio.sleep(0)
    return {"sent": task.data}


async def transactional_coroutine(tr: aio.Transaction, task: Any) -> Any:
    await tr.get(EFFECT)
    return {"sent": task.data}


def done(task: Any) -> Any:
    raise Done(result={"sent": task.data})


def done_with_effect(task: Any) -> Any:
    raise Done(lambda tr: tr.set(EFFECT, b"\x01"), {"sent": task.data})


@pytest.mark.parametrize(
    "handler", [plain, transactional_plain, coroutine, transactional_coroutine, done, done_with_effect]
)
def test_the_value_of_every_handler_is_the_result(
    db: Database, space: Any, queue: TaskQueue, handler: Callable[..., Any]
) -> None:
    task = queue.put(db, 7, result_ttl=60)
    in_transaction = "transactional" in handler.__name__
    asynchronous = {} if "coroutine" in handler.__name__ else {"threads": 1}
    options: dict[str, Any] = {"transactional": in_transaction, **asynchronous}
    Worker(db, queue, handler, root=space, **options).run(until_empty=True)
    assert queue.result(db, task, 0) == {"sent": 7}


def test_a_value_of_a_task_without_result_ttl_is_ignored(db: Database, queue: TaskQueue, work: Work) -> None:
    queue.put(db, 1)
    assert work(lambda _: object()) == [("succeeded", 1)]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_value_that_cannot_be_stored_fails_the_attempt(
    db: Database, queue: TaskQueue, work: Work, in_transaction: bool
) -> None:
    task = queue.put(db, 1, result_ttl=60)
    told = work(lambda *_: object(), transactional=in_transaction, attempts=2)
    assert told == [("retried", 1), ("buried", 1)]
    with pytest.raises(TaskFailed, match="carry object at result"):
        queue.result(db, task)


def test_a_waiting_call_is_told_of_the_last_error(db: Database, space: Any, queue: TaskQueue) -> None:
    def fail(_: Any) -> None:
        raise KeyError("no such customer")

    task = queue.put(db, 1, result_ttl=60)
    worker = Worker(db, queue, fail, attempts=1, backoff=SOON, root=space)
    worker.start()
    with pytest.raises(TaskFailed, match="KeyError: 'no such customer'"):
        queue.result(db, task, 60)
    worker.stop()
    assert worker.join(60)


def test_coroutines_wait_for_a_result_and_may_be_cancelled(space: Any) -> None:
    async def main() -> None:
        async with aio.open("memory:") as db:
            queue = await aio.TaskQueue.create(db, "own", root=space)
            task = await queue.put(db, 1, result_ttl=60)
            waiting = [asyncio.create_task(queue.result(db, task)) for _ in range(2)]
            await asyncio.sleep(0.01)
            waiting[0].cancel()
            await asyncio.wait([waiting[0]])
            await queue.ack(db, await queue.take(db, 0), result={"sent": 1})
            assert await waiting[1] == {"sent": 1}
            assert waiting[0].cancelled()

    asyncio.run(main())


def fail_once(task: Any) -> None:
    if task.failures == 0:
        raise ValueError("between two steps")


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_step_in_a_transaction_has_its_effect_once(
    db: Database, space: Subspace, queue: TaskQueue, work: Work, in_transaction: bool
) -> None:
    effect = space["effect"].key()

    def count(tr: Any) -> int:
        tr.add(effect, b"\x01")
        return 7

    def handler(*given: Any) -> None:
        *trs, task = given
        step = lambda tr: task.step(tr, "count", count)  # noqa: E731
        assert (step(trs[0]) if trs else run(task.database, step)) == 7
        fail_once(task)

    queue.put(db, "x")
    assert work(handler, transactional=in_transaction) == [("retried", "x"), ("succeeded", "x")]
    assert db[effect] == b"\x01"


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
