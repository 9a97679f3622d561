"""Functions as tasks, on an event loop: their puts and results are awaited."""

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Tasks, aio, current_task
from fdbqueue.core.errors import InvalidArgument, WrongType
from tests.aio.support import on_database, on_loop

pytestmark = pytest.mark.usefixtures("workers_end_soon")


async def send(to: str, subject: str = "hi") -> str:
    await aio.current_task().progress(0.5)
    return f"{to}: {subject}"


def plain(to: str) -> str:
    return f"{to}: {isinstance(current_task(), aio.HeldTask)}"


async def note(tr: aio.Transaction, key: str) -> str:
    tr.set(bytes.fromhex(key), b"done")
    return "noted"


def in_transaction(tr: object) -> None: ...


def tasks_of(root: Subspace) -> Tasks:
    return Tasks("emails", root=root)


async def work(db: aio.Database, tasks: Tasks, root: Subspace) -> None:
    await aio.Worker(db, "emails", tasks, root=root, attempts=1).run(until_empty=True)


@on_database
async def test_a_put_is_awaited_and_its_call_runs(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    tasks = tasks_of(root)
    awaited, beside = tasks.task(result_ttl=60)(send), tasks.task(result_ttl=60)(plain)
    first, second = await awaited.put(db, "ada", subject="yes"), await beside.put(db, "bob")
    assert first.data == {"function": "send", "args": ["ada"], "kwargs": {"subject": "yes"}}
    await work(db, tasks, root)
    assert await awaited.result(db, first, timeout=0) == "ada: yes"
    assert await queue.result(db, second) == "bob: False"


@on_database
async def test_a_put_in_a_transaction_is_a_part_of_it(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    decorated = tasks_of(root).task(send)

    @aio.transactional
    async def put(tr: aio.Transaction, fails: bool) -> None:
        await decorated.put(tr, "ada")
        if fails:
            raise RuntimeError

    await put(db, fails=False)
    with pytest.raises(RuntimeError):
        await put(db, fails=True)
    assert (await queue.statistics(db))["tasks"]["ready"] == 1


@on_database
async def test_a_wrong_call_is_refused_before_it_is_awaited(db: aio.Database, root: Subspace) -> None:
    decorated = tasks_of(root).task(send)
    for call in (lambda: decorated.put(db), lambda: decorated.put(db, 5)):  # type: ignore[call-arg,arg-type]
        with pytest.raises(WrongType):
            call()


@on_database
async def test_a_group_of_the_loop_counts_calls(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    tasks = tasks_of(root)
    decorated = tasks.task(send)
    group = await aio.Group.create(db, then=(queue, *decorated.call("boss")), root=root)
    await decorated.options(group=group).put(db, "ada")
    await group.close(db)
    await work(db, tasks, root)
    assert (await group.progress(db)).done == 1
    assert (await queue.statistics(db))["ends"]["acked"] == 2


@on_database
async def test_a_coroutine_function_runs_in_the_transaction_of_its_ack(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    tasks = tasks_of(root)
    decorated = tasks.task(transactional=True, result_ttl=60)(note)
    task = await decorated.put(db, root["note"].key().hex())
    await work(db, tasks, root)
    assert bytes(await db.create_transaction().get(root["note"].key())) == b"done"
    assert await queue.result(db, task) == "noted"


@on_database
async def test_a_plain_function_in_a_transaction_is_refused(db: aio.Database, root: Subspace) -> None:
    tasks = tasks_of(root)
    tasks.task(transactional=True)(in_transaction)
    with pytest.raises(InvalidArgument, match="in_transaction must be a coroutine function"):
        aio.Worker(db, "emails", tasks, root=root)


@on_loop
async def test_there_is_no_task_outside_a_worker() -> None:
    with pytest.raises(InvalidArgument, match="No worker runs a function"):
        await send("ada")
