"""Transactions on a loop: awaited reads, both decorators, both faces."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import aio
from fdbqueue.core.errors import NotADatabase, WrongType
from tests.aio.support import code_of, on_database, on_loop, until
from tests.support import TIMED_OUT


@fdbqueue.transactional
def count_blocking(tr: Any, key: bytes) -> Any:
    found = tr[key]
    number = int(found.value or b"0") + 1 if found.present() else 1
    tr[key] = b"%d" % number
    return number


@aio.transactional
async def count_up(tr: aio.Transaction, key: bytes) -> int:
    found = await tr.get(key)
    number = int(bytes(found)) + 1 if found.present() else 1
    tr[key] = b"%d" % number
    return number


@on_database
async def test_transactions_of_many_tasks_are_serializable(db: aio.Database, root: Subspace) -> None:
    counts = await asyncio.gather(*(count_up(db, root["n"].key()) for _ in range(20)))

    assert sorted(counts) == list(range(1, 21))


@on_database
async def test_a_blocking_function_runs_under_both_faces(db: aio.Database, url: str, root: Subspace) -> None:
    key = root["n"].key()
    assert await count_blocking(db, key) == 1
    assert await count_blocking(tr=db, key=key) == 2
    tr = db.create_transaction()
    assert await count_blocking(tr, key) == 3
    await tr.commit()
    if not url.startswith("memory"):
        assert await asyncio.to_thread(count_in_a_thread, url, key) == 4


def count_in_a_thread(url: str, key: bytes) -> int:
    with fdbqueue.open(url) as db:
        number: int = count_blocking(db, key)
        return number


@on_database
async def test_a_put_is_part_of_the_callers_transaction(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:

    @aio.transactional
    async def place(tr: aio.Transaction, number: int, fails: bool) -> None:
        tr[root["orders"].pack((number,))] = b"placed"
        await queue.put(tr, number)
        if fails:
            raise KeyError(number)

    await place(db, 1, fails=False)
    with pytest.raises(KeyError):
        await place(db, 2, fails=True)

    assert (await queue.statistics(db))["tasks"]["ready"] == 1
    orders = root["orders"].range()
    assert len(await db.get_range(orders.start, orders.stop)) == 1


@on_database
async def test_a_blocking_function_puts_with_the_blocking_queue(
    db: aio.Database, queue: aio.TaskQueue
) -> None:

    @fdbqueue.transactional
    def place(tr: Any) -> Any:
        return queue.blocking.put(tr, 1).data

    assert await place(db) == 1
    assert await db.run(lambda tr: place(tr)) == 1

    assert (await queue.statistics(db))["tasks"]["ready"] == 2


@on_database
async def test_a_range_is_awaited_or_iterated(db: aio.Database, root: Subspace) -> None:
    numbers = root["n"]

    @aio.transactional
    async def write(tr: Any) -> None:
        for number in range(300):
            tr[numbers.pack((number,))] = b"x" * 500

    await write(db)
    tr, span = db.create_transaction(), numbers.range()
    assert len(await tr.get_range(span.start, span.stop)) == 300
    assert len(await tr[span.start : span.stop].to_list()) == 300
    assert len([row async for row in tr.snapshot.get_range(span.start, span.stop)]) == 300


@on_database
async def test_a_range_that_is_left_reads_no_further(db: aio.Database, root: Subspace) -> None:
    """Rows that were not read do not conflict."""
    keys = [root["n"].pack((number,)) for number in range(100)]
    await asyncio.gather(*(db.set(key, b"x" * 500) for key in keys))
    tr = db.create_transaction()
    async for _ in tr.get_range(keys[0], keys[-1] + b"\x00"):
        break
    await db.set(keys[-1], b"y")
    tr[root["x"].key()] = b"x"

    assert await code_of(tr.commit()) == 0


@on_database
async def test_a_watch_is_awaited(db: aio.Database, root: Subspace) -> None:
    key = root["watched"].key()
    tr = db.create_transaction()
    watch = tr.watch(key)
    await tr.commit()
    assert not watch.is_ready()
    await db.set(key, b"x")
    await watch


@on_database
async def test_an_error_is_raised_where_its_future_is_awaited(db: aio.Database, root: Subspace) -> None:
    tr = db.create_transaction()
    tr[root["big"].key()] = b"x" * 200_000
    assert await code_of(tr.commit()) == 2103


@on_database
async def test_the_limits_of_transactional_hold(db: aio.Database, root: Subspace) -> None:
    key, attempts = root["n"].key(), []

    @aio.transactional(retry_limit=2)
    async def always_conflicts(tr: aio.Transaction, db: aio.Database) -> None:
        attempts.append(1)
        await tr.get(key)
        await db.set(key, b"%d" % len(attempts))
        tr[key] = b"mine"

    assert await code_of(always_conflicts(db, db)) == 1020
    assert len(attempts) == 3


@on_database
async def test_the_timeout_of_transactional_holds_while_a_body_awaits(
    db: aio.Database, root: Subspace
) -> None:
    """It goes on while other tasks have the loop."""
    now = asyncio.get_running_loop().time

    @aio.transactional(timeout_s=0.001)
    async def takes_longer(tr: aio.Transaction) -> None:
        tr[root["n"].key()] = b"late"
        until_s = now() + 0.01
        await until(lambda: now() > until_s)

    assert await code_of(takes_longer(db)) == TIMED_OUT
    assert await db.get(root["n"].key()) is None


label: ContextVar[str] = ContextVar("label", default="none")


@on_database
async def test_a_body_sees_the_context_of_its_awaiting_task(db: aio.Database, root: Subspace) -> None:
    @fdbqueue.transactional
    def read(tr: Any) -> Any:
        tr[root["x"].key()].present()
        seen = label.get()
        label.set("changed")  # in the fiber's copy
        return seen

    async def ask(name: str) -> tuple[str, str]:
        label.set(name)
        return await read(db), label.get()

    answers = await asyncio.gather(*(ask(str(number)) for number in range(10)))

    assert answers == [(str(number), str(number)) for number in range(10)]


def test_a_blocking_function_is_no_coroutine_function() -> None:
    with pytest.raises(WrongType, match="async def"):
        aio.transactional(print)  # type: ignore[arg-type]


@on_loop
async def test_a_coroutine_function_refuses_a_blocking_database() -> None:
    with fdbqueue.open("memory:") as blocking, pytest.raises(NotADatabase):
        await count_up(blocking, b"x")


@on_database
async def test_a_read_outlives_the_name_of_its_transaction(db: aio.Database, root: Subspace) -> None:
    await db.set(root["x"].key(), b"x")

    assert bytes(await db.create_transaction().get(root["x"].key())) == b"x"


@on_database
async def test_the_database_has_the_other_methods_of_the_binding(db: aio.Database, root: Subspace) -> None:
    key = root["n"].key()
    await db.add(key, (5).to_bytes(8, "little"))
    await db.add(key, (7).to_bytes(8, "little"))
    assert await db.get(key) == (12).to_bytes(8, "little")
    assert len(await db.get_range_startswith(root.key())) == 1
    await db.clear_range_startswith(root.key())
    assert await db.get(key) is None
    with pytest.raises(AttributeError):
        _ = db.no_such_method


@on_database
async def test_commits_and_conflicts_of_coroutine_functions_count(db: aio.Database, root: Subspace) -> None:
    @aio.transactional
    async def write(tr: aio.Transaction) -> None:
        await tr.get(root["n"].key())
        tr[root["n"].key()] = b"n"
        await asyncio.sleep(0)

    commits = db.counters.commits
    await asyncio.gather(write(db), write(db))

    assert (db.counters.commits - commits, db.counters.conflicts) == (2, 1)


@on_database
async def test_a_read_by_snapshot_conflicts_with_no_write(db: aio.Database, root: Subspace) -> None:
    key = root["x"].key()
    codes = []
    for by_snapshot in (True, False):
        tr = db.create_transaction()
        await (tr.snapshot if by_snapshot else tr).get(key)
        await db.set(key, b"x")
        tr[root["y"].key()] = b"y"
        codes.append(await code_of(tr.commit()))

    assert codes == [0, 1020]


@on_database
async def test_a_range_has_the_options_of_the_binding(db: aio.Database, root: Subspace) -> None:
    keys = [root[number].key() for number in range(3)]
    begin, end = root.range().start, root.range().stop
    for key in keys:
        await db.set(key, b"x")
    tr = db.create_transaction()

    assert [row.key for row in await db.get_range(begin, end, 1)] == keys[:1]
    assert [row.key for row in await db.get_range(begin, end, reverse=True)] == keys[::-1]
    for reads in (tr, tr.snapshot):
        assert [row.key for row in await reads.get_range(begin, end, 2, True)] == keys[:0:-1]
        assert [row.key for row in await reads.get_range_startswith(root.key(), reverse=True)] == keys[::-1]


@on_loop
async def test_an_observer_hears_of_a_commit_of_a_coroutine_function(
    url: str, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    async with aio.open(url) as db:
        with monkeypatch.context() as during:
            during.setattr("fdbqueue.core.observing.observers", [object()])
            during.setattr("fdbqueue.core.observing.tell_committed", lambda: told.append("committed"))
            await count_up(db, root["n"].key())

    assert told == ["committed"]
