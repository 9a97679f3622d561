"""Waits that end early: by events that call back, events that cannot, and the closing of the database."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from fdbqueue import Database
from fdbqueue.core.errors import WaitStopped
from fdbqueue.core.runtime import RealEvent, RealRuntime
from tests.interrupting import At, interrupted
from tests.support import PATIENCE_S, wait_until


def lookers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fdbqueue-stops"]


def pauses_until_stopped(db: Database, stop: threading.Event, act: Callable[[], object]) -> bool:
    """True if `act` has ended a long wait for `stop`."""
    ended, entered = threading.Event(), threading.Event()

    def call() -> None:
        with suppress(WaitStopped), db.waiter(stop) as waiter:
            entered.set()
            waiter.pause(3 * PATIENCE_S)
            return
        ended.set()

    threading.Thread(target=call, daemon=True).start()
    assert entered.wait(PATIENCE_S)
    act()
    return ended.wait(PATIENCE_S)


def test_a_stop_before_the_wait_has_begun_ends_it(memory: Database) -> None:
    stop, told = RealEvent(), threading.Event()
    with memory.waiter(stop) as waiter:
        stop.set()
        waiter.on_ready(lambda _: told.set())
    assert told.is_set()


def test_a_later_event_without_callbacks_stops_a_call(memory: Database) -> None:
    """The thread that looks at such events ends with the last of them, and begins anew."""
    for _ in range(2):
        stop = threading.Event()
        assert pauses_until_stopped(memory, stop, stop.set)
        wait_until(lambda: not lookers())


class Fatal(threading.Event):
    """An event that ends, once, the thread that looks at it."""

    is_armed = False

    def is_set(self) -> bool:
        if self.is_armed:
            self.is_armed = False
            raise SystemKill
        return super().is_set()


class SystemKill(BaseException):
    """As gevent's GreenletExit."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_event_stops_a_call_after_its_thread_has_ended(memory: Database) -> None:
    stop = Fatal()

    def end_the_thread_then_set() -> None:
        ending = lookers()
        stop.is_armed = True
        wait_until(lambda: not stop.is_armed)
        for thread in ending:
            thread.join(PATIENCE_S)  # or pytest finds its exception in the next test
        stop.set()

    assert pauses_until_stopped(memory, stop, end_the_thread_then_set)


def test_a_refused_call_leaves_no_callback_behind(memory: Database) -> None:
    first, second = RealEvent(), RealEvent()
    second.set()
    with pytest.raises(WaitStopped), memory.waiter(first, second):
        raise AssertionError
    assert first._listeners._callbacks == second._listeners._callbacks == {}


def test_a_database_is_closed_as_soon_as_closing_begins(memory: Database) -> None:
    class Looking:
        seen: bool

        def __init__(self, _: Database) -> None: ...
        def is_needed(self) -> bool:
            return True

        def close(self) -> None:
            self.seen = memory.closed

    service = memory.service("key", Looking)
    memory.close()
    assert service.seen


# Events of the real runtime: a signal handler may set one at each step, also of the event's own code.


WAIT_S = 0.05


def test_a_handler_may_set_the_event_that_is_being_set() -> None:
    step, came = 0, True
    while came:
        step, event = step + 1, RealEvent()
        came = interrupted(At(step, event.set, __file__), event.set)
        assert event.is_set()
    assert step > 2


def test_a_handler_may_set_the_event_that_is_waited_for() -> None:
    """The wait ends then. In its last steps it has timed out before."""
    step, ended_early, came = 0, 0, True
    while came:
        step, event, answers = step + 1, RealEvent(), list[bool]()
        at, begun = At(step, event.set, __file__), time.monotonic()
        came = interrupted(at, lambda event=event, answers=answers: answers.append(event.wait(WAIT_S)))
        if at.came_at is not None and at.came_at < begun + WAIT_S:
            assert answers == [True]
            ended_early += 1
    assert ended_early > 2


def test_each_waiting_thread_is_woken() -> None:
    event, answers = RealEvent(), list[bool]()
    threads = [threading.Thread(target=lambda: answers.append(event.wait(PATIENCE_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [True] * 3


def test_a_wait_of_no_time_returns_at_once() -> None:
    event = RealEvent()
    assert [event.wait(0), event.wait(-1)] == [False, False]
    event.set()
    assert [event.wait(0), event.wait(-1), event.wait()] == [True] * 3
    event.clear()
    assert not event.wait(0)


# Its randomness.


def test_the_randomness_of_a_runtime_is_its_own() -> None:
    """A program's seed does not set it, and it does not use up the program's sequence."""
    before = random.getstate()
    drawn = {RealRuntime.random() for _ in range(10)}
    assert random.getstate() == before
    assert len(drawn) == 10
    assert all(0.0 <= number < 1.0 for number in drawn)
