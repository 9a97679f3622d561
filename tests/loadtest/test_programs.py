"""Samples, shapes and documents of the load tests; threads beside greenlets; the end by SIGTERM."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gevent
import pytest

import fdbqueue
from fdbqueue.core.observing import Counters
from loadtest import users
from loadtest.samples import Sample, conflicts_by_consumers, rates_of, together
from loadtest.shapes import SHAPES, users_at
from loadtest.threads import Threads, timed
from tests.support import PATIENCE_S


def sample(second, consumers, operations, conflicts):
    return Sample(second, consumers, consumers, 0.0, 0.0, 0.0, operations, conflicts)


def test_conflicts_are_set_against_the_consumers_that_were_there():
    """A second in which consumers came or went belongs to neither number."""
    samples = [
        sample(0, 1, 0, 0),
        sample(1, 1, 100, 0),
        sample(2, 4, 200, 90),
        sample(3, 4, 300, 140),
        sample(4, 4, 400, 190),
    ]
    assert conflicts_by_consumers(samples) == [(1, 0.0), (4, 0.5)]


def test_a_rate_is_taken_over_three_seconds():
    """From the first sample on, as far back as there is one."""
    samples = [sample(second, 1, operations, 0) for second, operations in enumerate([0, 90, 90, 90, 90, 400])]
    assert rates_of(samples) == [0, 90, 45, 30, 0, 310 / 3]


def test_counters_of_processes_add_up():
    """Field by field."""
    one, other = Counters(conflicts=2, retries=3, wake_ups=1), Counters(conflicts=1, requests=5)
    assert together([one, other]) == Counters(conflicts=3, retries=3, requests=5, wake_ups=1)


PAGE = (Path(__file__).parents[2] / "docs" / "loadtest.md").read_text()


def rows(heading):
    """The first cells of the table that begins with `heading`, without their backquotes."""
    table = re.search(rf"^\| {re.escape(heading)}.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)[1]
    return {re.match(r"\| `?(\w+)`?", line)[1] for line in table.splitlines()}


def test_every_user_is_explained():
    """And no other."""
    known = {
        name
        for name, found in vars(users).items()
        if isinstance(found, type) and issubclass(found, users.LibraryUser) and not found.abstract
    }
    assert rows("user ") == known


def test_every_shape_is_explained():
    """And no other."""
    assert rows("`--shape` ") == set(SHAPES)


def test_every_counter_is_explained():
    """And no other."""
    assert rows("|") == {field.name for field in dataclasses.fields(Counters)}


def course(shape, total_s, users):
    return [users_at(shape, second, total_s, users) for second in range(total_s)]


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_shape_has_users_at_once_and_ends_in_time(shape):
    """At least one, never more than asked for."""
    assert all(1 <= count <= 20 for count in course(shape, 60, 20))
    assert max(course(shape, 60, 20)) == 20
    assert users_at(shape, 60, 60, 20) is None


def test_steady_is_all_of_them():
    """From beginning to end."""
    assert course("steady", 10, 7) == [7] * 10


def test_ramp_doubles():
    """In four steps of the same length."""
    assert course("ramp", 8, 32) == [4, 4, 8, 8, 16, 16, 32, 32]


def test_burst_goes_up_and_down_again():
    """A tenth of them, all for three seconds in ten."""
    assert course("burst", 20, 10) == ([10] * 3 + [1] * 7) * 2


def test_soak_stays():
    """Up in the first tenth of the time."""
    assert course("soak", 100, 50)[10:] == [50] * 90
    assert course("soak", 100, 50)[:3] == [1, 5, 10]


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


BUSY = """
import os, signal, sys, time
from loadtest import termination

{before}
termination.install()
{after}
print("busy", os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""
IGNORING = "signal.signal(signal.SIGTERM, lambda *_: None)"
PASSES_ON_THE_STATUS_OF_A_CHILD = """
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def start():
    started = []

    def start_(before: str, after: str = "") -> subprocess.Popen[str]:
        program = [sys.executable, "-c", BUSY.format(before=before, after=after)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start_
    for process in started:
        process.kill()
        process.communicate()


def terminate(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the process, or the child of it, that says that it is busy."""
    assert process.stdout is not None
    os.kill(int(process.stdout.readline().split()[1]), signal.SIGTERM)


def test_a_process_without_a_handler_ends_by_the_signal(start):
    process = start("")
    terminate(process)
    assert process.wait(60) == -signal.SIGTERM


def test_a_handler_that_ends_the_process_is_called(start):
    process = start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))")
    terminate(process)
    assert process.wait(60) == 7


def test_a_second_signal_ends_a_process_that_goes_on(start):
    process = start(IGNORING)
    terminate(process)
    assert "ending the run" in process.stderr.readline()
    process.terminate()
    assert process.wait(60) == 1
    assert process.stderr.read() == "verdict: none: a second SIGTERM\n"


def test_a_process_that_goes_on_for_too_long_is_ended(start):
    process = start(f"{IGNORING}; termination.ORDERLY_END_S = 0.1")
    terminate(process)
    assert process.wait(60) == 1


def test_a_forked_child_is_supervised_too(start):
    process = start(f"{IGNORING}; termination.ORDERLY_END_S = 0.1", PASSES_ON_THE_STATUS_OF_A_CHILD)
    terminate(process)
    assert process.wait(60) == 1
