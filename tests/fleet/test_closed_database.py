"""A worker whose database is closed ends, and tells why. A handler cannot close it."""

import threading

import pytest

import fdbqueue
from fdbqueue import TaskQueue, Worker
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from tests.fleet.conftest import SOON
from tests.support import wait_until

IN_TIME_S = 20


@pytest.fixture
def own(url):
    """A database that the test closes."""
    with fdbqueue.open(url) as database:
        yield database


class Run(threading.Thread):
    """A call of `worker.run()`, and the error that it raises."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        self.worker, self.error = worker, None
        self.start()

    def run(self):
        try:
            self.worker.run()
        except DatabaseClosed as error:
            self.error = error

    def has_ended(self):
        self.join(IN_TIME_S)
        return not self.is_alive()


def waiting(worker, monkeypatch):
    """Run the worker until it waits for tasks."""
    waits, take = threading.Event(), worker._feed.take

    def take_and_tell(*arguments):
        waits.set()
        return take(*arguments)

    monkeypatch.setattr(worker._feed, "take", take_and_tell)
    run = Run(worker)
    assert waits.wait(IN_TIME_S)
    return run


def in_a_block(task):
    with task.database as database:
        database.counters.commits += 0


async def in_an_awaited_block(task):
    async with task.database as database:
        await database.get(b"")


async def closing_awaited(task):
    await task.database.close()
    task.database.blocking.close()


@pytest.mark.parametrize(
    "handler", [in_a_block, lambda task: task.database.close(), in_an_awaited_block, closing_awaited]
)
def test_a_handler_may_close_the_database_that_it_was_given(db, queue, work, handler):
    """That does nothing: the handler and the worker go on with it."""
    queue.put_many(db, [1, 2, 3])
    assert sorted(work(handler, max_attempts=1)) == [("succeeded", number) for number in (1, 2, 3)]
    assert not db.closed


def test_a_task_has_the_database_of_its_worker(own, space):
    """With its session, and its end."""
    queue, seen, root = TaskQueue.create(own, "one", root=space), [], RootKeys(space)
    queue.put(own, 1)
    Worker(own, queue, lambda task: seen.append(task.database), root=space).run(until_empty=True)
    (database,) = seen
    assert isinstance(database, fdbqueue.Database)
    assert keeper_of(database, root) is keeper_of(own, root)
    own.close()
    assert database.closed
    with pytest.raises(DatabaseClosed):
        queue.put(database, 1)


def test_a_closed_database_of_a_handler_is_a_failure(db, queue, work):
    """It is no outage: the process itself has closed it, and each attempt would meet it."""
    own = fdbqueue.open("memory:")
    own.close()
    queue.put_many(db, ["poison", "good"])
    handler = lambda task: own.get(b"") if task.data == "poison" else None  # noqa: E731
    told = work(handler, threads=1, max_attempts=2)
    assert sorted(told) == [("buried", "poison"), ("retried", "poison"), ("succeeded", "good")]
    (buried,) = queue.tasks(db, "!", 2)
    assert {failure.error for failure in queue.failures(db, buried)} == {"DatabaseClosed"}


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("names", [["one"], ["one", "another", "third"]])
def test_a_waiting_worker_ends_when_its_database_is_closed(own, space, monkeypatch, names):
    for name in names:
        TaskQueue.create(own, name, root=space)
    run = waiting(Worker(own, names, print, backoff=SOON, root=space), monkeypatch)
    own.close()
    assert run.has_ended()
    assert isinstance(run.error, DatabaseClosed)
    assert run.worker.status().state == "ended"


def test_a_worker_of_coroutines_ends_when_its_database_is_closed(own, space):
    TaskQueue.create(own, "one", root=space).put(own, 1)
    begun = threading.Event()

    async def handle(_):
        begun.set()

    run = Run(Worker(own, "one", handle, root=space))
    assert begun.wait(IN_TIME_S)
    own.close()
    assert run.has_ended()
    assert isinstance(run.error, DatabaseClosed)


def test_a_running_handler_may_end_after_its_database_is_closed(own, space):
    TaskQueue.create(own, "one", root=space).put(own, 1)
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def handle(_):
        begun.set()
        ended.append(may_end.wait(IN_TIME_S))

    run = Run(Worker(own, "one", handle, threads=2, root=space))
    assert begun.wait(IN_TIME_S)
    own.close()
    wait_until(lambda: run.worker.status().state == "stopping")  # another thread has met the closed database
    may_end.set()
    assert run.has_ended()
    assert isinstance(run.error, DatabaseClosed)
    assert ended == [True]
