"""Library calls block OS threads, and never a greenlet that has nothing to do with them."""

import threading

import gevent
import pytest

import fdbqueue
from loadtest.threads import Threads, timed
from tests.support import PATIENCE_S


@pytest.fixture
def threads():
    with gevent.Timeout(PATIENCE_S):
        yield Threads()


def test_a_greenlet_goes_on_while_another_waits_for_an_item(threads, db, space):
    """If the waiting call blocked the hub, no greenlet could put its item."""
    queue = fdbqueue.Queue(space["queue"], root=space["root"])
    waiting = gevent.spawn(threads.run, lambda: queue.dequeue(db, timeout=PATIENCE_S))
    for _ in range(3):
        gevent.sleep(0)
    gevent.spawn(threads.run, lambda: queue.enqueue(db, "here")).join()
    assert waiting.get() == "here"


def test_a_slow_call_stops_no_other_greenlet(threads):
    """The one that ends the slow call is a greenlet."""
    over = threading.Event()
    slow = gevent.spawn(threads.run, lambda: over.wait(PATIENCE_S))
    gevent.spawn_later(0.01, over.set)
    assert slow.get() is True


def test_threads_are_real(threads):
    """Two calls that can only end together do."""
    both = threading.Barrier(2, timeout=PATIENCE_S)
    calls = [gevent.spawn(threads.run, both.wait) for _ in range(2)]
    assert sorted(call.get() for call in calls) == [0, 1]


def test_the_call_of_a_killed_greenlet_is_waited_for(threads):
    """Locust stops a user by a kill; a call that has begun is finished, and noted."""
    begun, over, done = threading.Event(), threading.Event(), []

    def call():
        begun.set()
        over.wait(PATIENCE_S)
        done.append("noted")

    user = gevent.spawn(threads.run, call)
    while not begun.is_set():
        gevent.sleep(0)
    user.kill()
    over.set()
    threads.join()
    assert done == ["noted"]


def test_a_failed_call_is_reported_with_its_error_and_time():
    """As a request that failed; nothing is raised in the user."""
    done = timed("dequeue", lambda: 1 // 0)
    assert isinstance(done.error, ZeroDivisionError)
    assert done.answer is None
    assert done.latency_ms >= 0
