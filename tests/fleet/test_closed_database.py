"""A worker whose database is closed ends, and tells why."""

import threading

import pytest

import fdbqueue
from fdbqueue import TaskQueue, Worker
from fdbqueue.errors import DatabaseClosed
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


@pytest.mark.parametrize("names", [["one"], ["one", "another"]])
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
