"""A signal handler may set an event at each step of the code that it interrupts, also of the event's own."""

import threading
import time

from fdbqueue.core.runtime import RealEvent
from tests.interrupting import At, interrupted
from tests.support import PATIENCE_S

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
