"""Workers with coroutine functions: on a loop of their own, and on the loop of their caller."""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, TaskQueue, TaskState, Worker, aio
from fdbqueue.core.errors import (
    DatabaseClosed,
    DeferredBody,
    InvalidArgument,
    QueueNotFound,
    UnknownCodec,
    WorkerUsed,
    WrongType,
)
from tests.aio.support import on_database, on_loop

Make = Callable[..., Worker]
pytestmark = pytest.mark.usefixtures("workers_end_soon")


@pytest.fixture
def queue(db: Database, space: Subspace) -> TaskQueue:
    return TaskQueue.create(db, "emails", "fifottl", ttr=60, root=space["root"])


@pytest.fixture
def worker_of(db: Database, space: Subspace, queue: TaskQueue) -> Make:
    """Make a worker of the queue."""
    return lambda handler, **options: Worker(db, queue.name, handler, root=space["root"], **options)


@pytest.fixture
def work(worker_of: Make) -> Make:
    """Work until the queue is empty; return the worker."""

    def run(handler: Any, **options: Any) -> Worker:
        worker = worker_of(handler, **options)
        worker.run(until_empty=True)
        return worker

    return run


def ends(db: Database, queue: TaskQueue) -> dict[str, int]:
    return {name: number for name, number in queue.statistics(db)["ends"].items() if number}


def test_a_coroutine_function_handles_tasks(db: Database, queue: TaskQueue, work: Make) -> None:
    seen = []

    async def send(task: aio.HeldTask) -> None:
        await asyncio.sleep(0)
        seen.append(task.data)

    queue.put_many(db, list(range(20)))
    work(send)

    assert sorted(seen) == list(range(20))
    assert ends(db, queue) == {"acked": 20}


class Sender:
    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    async def __call__(self, task: aio.HeldTask) -> None:
        self._seen.append(task.data)


async def send_to(seen: list[Any], task: aio.HeldTask) -> None:
    seen.append(task.data)


class NamedWorker(Worker):
    def __init__(self, name: str, *, handler: Any, **options: Any) -> None:
        super().__init__(handler=handler, **options)
        self.name = name


def test_a_subclass_of_the_worker_runs_coroutines(db: Database, space: Subspace, queue: TaskQueue) -> None:
    seen: list[Any] = []
    queue.put(db, 1)
    worker = NamedWorker("ada", db=db, queues="emails", handler=Sender(seen), root=space["root"])
    worker.run(until_empty=True)

    assert isinstance(worker, NamedWorker)
    assert (worker.name, seen) == ("ada", [1])


@pytest.mark.parametrize("made", [Sender, lambda seen: functools.partial(send_to, seen)])
def test_objects_and_partials_are_coroutine_functions_too(
    db: Database, queue: TaskQueue, made: Callable[[list[Any]], Callable[[aio.HeldTask], Any]], work: Make
) -> None:
    seen: list[Any] = []
    queue.put(db, 1)
    work(made(seen))

    assert seen == [1]


def test_coroutines_run_at_the_same_time_on_one_thread(db: Database, queue: TaskQueue, work: Make) -> None:
    together, threads = asyncio.Barrier(50), set()

    async def meet(_: aio.HeldTask) -> None:
        threads.add(threading.get_ident())
        await together.wait()

    queue.put_many(db, list(range(50)))
    work(meet, concurrency=50)

    assert len(threads) == 1


def test_a_transactional_coroutine_awaits_its_transaction(
    db: Database, space: Subspace, queue: TaskQueue, work: Make
) -> None:
    key = space["n"].key()

    async def count(tr: aio.Transaction, _: aio.HeldTask) -> None:
        found = await tr.get(key)
        tr[key] = b"%d" % (int(bytes(found)) + 1 if found.present() else 1)

    queue.put_many(db, list(range(10)))
    work(count, transactional=True)

    assert db[key] == b"10"
    assert ends(db, queue) == {"acked": 10}


def test_verdicts_and_errors_of_coroutines_count(db: Database, queue: TaskQueue, work: Make) -> None:
    async def judge(task: aio.HeldTask) -> None:
        if task.data == "bury":
            raise fdbqueue.Bury("no such address")
        if task.data == "fail" and task.failures == 0:
            raise KeyError(task.data)

    queue.put_many(db, ["bury", "fail"])
    work(judge, backoff=fdbqueue.Backoff(first_s=0.001))

    assert ends(db, queue) == {"acked": 1, "buried": 1}
    assert queue.statistics(db)["calls"]["release"] == 1


def test_a_coroutine_over_its_time_is_cancelled(db: Database, queue: TaskQueue, work: Make) -> None:
    cleaned = []

    async def hang(_: aio.HeldTask) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaned.append(True)

    queue.put(db, 1)
    work(hang, timeout_s=0.2, attempts=1)

    assert cleaned == [True]
    (buried,) = queue.tasks(db, TaskState.BURIED, 10)
    assert [failure.error for failure in queue.failures(db, buried)] == ["Timeout"]


def test_a_stopped_worker_cancels_what_is_not_done(db: Database, queue: TaskQueue, worker_of: Make) -> None:
    begun, cleaned = threading.Event(), []

    async def hang(_: aio.HeldTask) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            cleaned.append(True)

    queue.put(db, 1)
    worker = worker_of(hang)
    worker.start()
    assert begun.wait(60)
    assert [running.queue for running in worker.status().running] == ["emails"]
    worker.stop(at_once=True)
    assert worker.join(60)

    assert cleaned == [True]
    assert queue.statistics(db)["tasks"]["ready"] == 1
    assert worker.status().state == "ended"


def test_a_lease_is_renewed_while_a_coroutine_runs(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "brief", "fifottl", ttr=1, root=space["root"])
    attempts = []

    async def outlast(task: aio.HeldTask) -> None:
        attempts.append(task.attempts)
        while not task.lost and db.runtime.now() < (task.taken or 0) + 2:
            await asyncio.sleep(0.01)

    queue.put(db, 1)
    Worker(db, queue, outlast, root=space["root"]).run(until_empty=True)

    assert attempts == [1]


@pytest.mark.parametrize(
    ("module", "error", "said"),
    [("greenlet", DeferredBody, r"fdbqueue\[aio\]"), ("another", ModuleNotFoundError, "another")],
)
def test_greenlet_alone_is_blamed_on_the_extra(
    worker_of: Make, monkeypatch: pytest.MonkeyPatch, module: str, error: type[Exception], said: str
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"{name} needs {module}", name=module)

    monkeypatch.setattr("fdbqueue.fleet.worker.importlib.import_module", missing)
    with pytest.raises(error, match=said):
        worker_of(Sender([]))


async def generate(_: aio.HeldTask) -> Any:
    yield 1


def test_an_asynchronous_generator_stays_refused(db: Database, queue: TaskQueue) -> None:
    with pytest.raises(DeferredBody, match="generator"):
        Worker(db, queue, generate)


def test_an_awaitable_of_a_blocking_handler_fails_its_attempt(
    db: Database, queue: TaskQueue, work: Make
) -> None:
    queue.put(db, 1)
    work(lambda task: send_to([], task), attempts=1)

    assert ends(db, queue) == {"buried": 1}


@on_database
async def test_a_worker_runs_on_the_loop_of_its_caller(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    here, seen = threading.get_ident(), []

    async def send(task: aio.HeldTask) -> None:
        seen.append((task.data, threading.get_ident() == here))

    await queue.put_many(db, [1, 2, 3])
    worker = aio.Worker(db, queue, send, root=root)
    await worker.run(until_empty=True)

    assert sorted(seen) == [(1, True), (2, True), (3, True)]
    assert worker.emptied
    assert worker.status().state == "ended"


@on_database
async def test_a_blocking_handler_is_for_the_blocking_worker(db: aio.Database) -> None:
    with pytest.raises(WrongType, match="async def"):
        aio.Worker(db, "emails", print)


@on_database
async def test_a_cancelled_run_lets_its_handlers_end(
    db: aio.Database, queue: aio.TaskQueue, root: Subspace
) -> None:
    begun, ended = asyncio.Event(), []

    async def send(task: aio.HeldTask) -> None:
        begun.set()
        await asyncio.sleep(0.1)
        ended.append(task.data)

    await queue.put(db, 1)
    running = asyncio.create_task(aio.Worker(db, "emails", send, root=root).run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert ended == [1]
    assert (await queue.statistics(db))["tasks"]["done"] == 1


def test_a_worker_runs_once(work: Make) -> None:
    worker = work(Sender([]))
    with pytest.raises(WorkerUsed):
        worker.run()


def test_a_worker_that_never_starts_has_no_thread(db: Database, queue: TaskQueue, worker_of: Make) -> None:
    queue.put(db, 1)  # the engine starts its own threads
    before = threading.active_count()
    worker = worker_of(Sender([]))

    assert threading.active_count() == before
    assert worker.status().state == "new"


def test_a_worker_that_was_refused_can_start_later(
    db: Database, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, worker_of: Make
) -> None:
    seen: list[Any] = []
    queue.put(db, 1)
    worker = worker_of(Sender(seen))
    threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(TaskQueue, "require_codec", unknown)
        with pytest.raises(UnknownCodec):
            worker.start()
    assert threading.active_count() == threads

    worker.run(until_empty=True)
    assert seen == [1]


def unknown(queue: TaskQueue) -> None:
    raise UnknownCodec(codec=f"that of {queue.name}")


def test_a_stop_before_the_start_holds(db: Database, queue: TaskQueue, worker_of: Make) -> None:
    queue.put(db, 1)
    worker = worker_of(Sender([]))
    worker.stop()
    worker.run()

    assert worker.status().state == "ended"
    assert queue.statistics(db)["tasks"]["ready"] == 1


def test_a_thread_may_wait_for_a_worker_before_it_starts(
    db: Database, queue: TaskQueue, worker_of: Make
) -> None:
    queue.put(db, 1)
    worker = worker_of(Sender([]))
    waiter = threading.Thread(target=worker.join)
    waiter.start()
    worker.run(until_empty=True)
    waiter.join(30)

    assert not waiter.is_alive()


def test_the_status_is_told_while_a_handler_stops_the_loop(
    db: Database, queue: TaskQueue, worker_of: Make
) -> None:
    began, may_end = threading.Event(), threading.Event()

    async def stand_still(task: aio.HeldTask) -> None:  # noqa: ARG001
        began.set()
        may_end.wait(30)

    queue.put(db, 1)
    worker = worker_of(stand_still)
    worker.start(until_empty=True)
    assert began.wait(30)
    running = worker.status().running
    may_end.set()

    assert [task.queue for task in running] == ["emails"]
    assert worker.join(30)
    assert worker.status().tally.done == 1


@on_database
async def test_run_raises_the_error_that_ended_the_worker(
    db: aio.Database, root: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_queue(*_: Any) -> None:
        raise QueueNotFound(name="emails")

    monkeypatch.setattr("fdbqueue.fleet.feed.Feed.take", find_no_queue)
    await aio.TaskQueue.create(db, "emails", root=root)
    with pytest.raises(QueueNotFound):
        await aio.Worker(db, "emails", Sender([]), root=root).run()


@on_loop
async def test_a_worker_ends_when_its_database_is_closed(url: str, root: Subspace) -> None:
    db, sent = await aio.open(url), asyncio.Event()

    async def send(_: aio.HeldTask) -> None:
        sent.set()

    emails = await aio.TaskQueue.create(db, "emails", root=root)
    await emails.put(db, 1)
    running = asyncio.create_task(aio.Worker(db, emails, send, root=root).run())
    await sent.wait()
    await db.close()
    with pytest.raises(DatabaseClosed):
        await asyncio.wait_for(running, 20)


@on_loop
async def test_two_starts_at_once_make_one_worker(url: str, root: Subspace) -> None:
    seen: list[Any] = []
    async with aio.open(url) as db:
        emails = await aio.TaskQueue.create(db, "emails", "fifottl", ttr=60, root=root)
        await emails.put(db, 1)
        worker = aio.Worker(db, "emails", Sender(seen), root=root)
        ends = await asyncio.gather(*(worker.run(until_empty=True) for _ in range(2)), return_exceptions=True)

    assert sorted(map(type, ends), key=str) == sorted([type(None), WorkerUsed], key=str)
    assert seen == [1]


@on_database
async def test_a_wrong_option_is_told_by_the_constructor(db: aio.Database) -> None:
    with pytest.raises(InvalidArgument):
        aio.Worker(db, "emails", Sender([]), concurrency=0)
