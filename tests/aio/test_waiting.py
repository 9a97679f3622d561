"""What waits on a loop: events, locks, threads and wakes. Cancelled calls that go on."""

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest
from greenlet import GreenletExit

from fdbqueue.aio.hub import Fiber, Hub
from fdbqueue.aio.runtime import LoopEvent, LoopLock
from fdbqueue.core import limits
from tests.aio.support import cancel_soon, hub, on_loop, runtime, until


@on_loop
async def test_an_event_wakes_all_that_wait_for_it() -> None:
    event = runtime().event()
    waiting = [asyncio.create_task(hub().call(lambda: event.wait(60))) for _ in range(3)]
    await asyncio.sleep(0)
    event.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [True] * 3


@on_loop
async def test_an_event_forgets_an_interrupted_wait() -> None:
    event = runtime().event()
    await cancel_soon(hub().call(event.wait))

    assert event._waiting == {}


@on_loop
async def test_a_wait_does_not_end_with_the_answer_of_an_earlier_one() -> None:
    here = runtime()
    first = here.event()

    def wait_twice() -> tuple[bool, bool]:
        return first.wait(60), here.event().wait(0.001)

    waiting = asyncio.create_task(hub().call(wait_twice))
    await asyncio.sleep(0)
    first.set()

    assert await waiting == (True, False)


@on_loop
async def test_an_event_that_is_set_as_its_wait_ends_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over, and the fiber has not run again."""
    event, time_out = runtime().event(), Fiber._time_out

    def set_after(fiber: Fiber, turn: int) -> None:
        time_out(fiber, turn)
        event.set()

    monkeypatch.setattr(Fiber, "_time_out", set_after)
    assert await hub().call(lambda: event.wait(0))


@on_loop
async def test_a_lock_passes_over_waits_that_are_given_up() -> None:
    lock, woken = runtime().lock(), []
    lock.acquire()
    assert await hub().call(lambda: lock.acquire(timeout=0.001)) is False
    assert await hub().call(lambda: lock.acquire(blocking=False)) is False
    waiting = asyncio.create_task(hub().call(lambda: woken.append(lock.acquire(timeout=60))))
    await asyncio.sleep(0)
    lock.release()
    await asyncio.wait([waiting], timeout=5)

    assert woken == [True]


@on_loop
async def test_a_wait_for_a_lock_that_is_lost_again_is_not_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder takes the lock again before the woken waiter runs."""
    lock, now_s, waits_s = LoopLock(hub()), [0.0], list[float | None]()
    wait = LoopEvent.wait

    def noted(event: LoopEvent, timeout: float | None = None) -> bool:
        waits_s.append(timeout)
        return wait(event, timeout)

    monkeypatch.setattr(LoopEvent, "wait", noted)
    monkeypatch.setattr(hub().runtime, "monotonic", lambda: now_s[0])
    lock.acquire()
    waiting = asyncio.create_task(hub().call(lambda: lock.acquire(timeout=60)))
    await asyncio.sleep(0)
    now_s[0] = 20
    lock.release()
    lock.acquire()
    await until(lambda: len(waits_s) == 2)
    lock.release()
    await waiting

    assert waits_s == [60, 40]


@on_loop
async def test_a_thread_that_fails_has_ended() -> None:
    def fail() -> None:
        raise GreenletExit

    thread = runtime().spawn(fail, "test")
    async with asyncio.timeout(5):
        await hub().call(thread.join)

    assert not thread.is_alive()


@on_loop
async def test_a_task_or_thread_that_has_ended_is_not_alive() -> None:
    here, lives = runtime(), list[Any]()

    async def ask() -> None:
        lives.append(await hub().call(here.thread_is_alive))

    asking = asyncio.create_task(ask())
    await asking
    thread = here.spawn(lambda: lives.append(here.thread_is_alive()), "test")
    await hub().call(thread.join)
    await until(lambda: [is_alive() for is_alive in lives] == [False, False])


def test_a_fiber_of_a_closed_loop_waits_for_nothing() -> None:
    loop = asyncio.new_event_loop()
    here = Hub(loop)

    def work() -> None:
        try:
            LoopEvent(here).wait()
        finally:
            LoopEvent(here).wait()

    fiber = Fiber(loop, work)
    fiber.resume()
    loop.close()
    fiber.interrupt(GreenletExit())

    assert fiber.dead


@on_loop
async def test_calls_that_never_wait_let_the_loop_turn() -> None:
    turns, calls = list[int](), 0
    asyncio.get_running_loop().call_soon(lambda: turns.append(calls))
    for number in range(100):
        calls = number
        await hub().call(lambda: None)

    assert 0 < turns[0] <= 20


@on_loop
async def test_a_close_outlasts_each_cancelled_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_PATIENCE_S", 0)
    here, ends = runtime(), list[int]()
    gates = [here.event(), here.event()]

    def work(number: int) -> None:
        try:
            here.event().wait()
        finally:
            gates[number].wait()
            ends.append(number)

    working = [asyncio.create_task(hub().call(partial(work, number))) for number in (0, 1)]
    await asyncio.sleep(0)
    for task in working:
        task.cancel()
    await asyncio.wait(working)
    closing = asyncio.create_task(hub().call(lambda: hub().outlast_cancelled_calls(60)))
    gates[0].set()
    await until(lambda: ends == [0])
    await asyncio.sleep(0.01)
    assert not closing.done()
    gates[1].set()
    await closing

    assert ends == [0, 1]


@on_loop
async def test_a_close_is_patient_while_answers_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_PATIENCE_S", 0)
    here, ends = runtime(), list[str]()

    def work() -> None:
        try:
            here.event().wait()
        finally:
            for _ in range(20):
                here.sleep(0.01)
            ends.append("work")

    await cancel_soon(hub().call(work))
    await hub().call(lambda: hub().outlast_cancelled_calls(0.1))

    assert ends == ["work"]


@on_loop
async def test_a_close_is_patient_while_a_result_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_PATIENCE_S", 0)
    here, undone = runtime(), list[str]()
    stop = here.event()

    def work() -> str:
        stop.wait()
        return "result"

    def undo(result: str) -> None:
        for _ in range(20):
            here.sleep(0.01)
        undone.append(result)

    await cancel_soon(hub().call(work, stop, undo))
    await hub().call(lambda: hub().outlast_cancelled_calls(0.1))

    assert undone == ["result"]


@on_loop
async def test_a_close_gives_up_a_call_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_PATIENCE_S", 0)
    here = runtime()
    answer = here.event()

    def work() -> None:
        try:
            here.event().wait()
        finally:
            answer.wait()

    await cancel_soon(hub().call(work))
    async with asyncio.timeout(30):
        await hub().call(lambda: hub().outlast_cancelled_calls(0.01))
    answer.set()


class Result:
    """The result of a call that is cancelled."""


@on_loop
async def test_a_cancelled_call_that_has_ended_is_forgotten() -> None:
    stop, results = runtime().event(), list["weakref.ref[Result]"]()

    def work() -> Result:
        stop.wait()
        result = Result()
        results.append(weakref.ref(result))
        return result

    await cancel_soon(hub().call(work, stop))
    gc.collect()

    assert hub()._ends == {}
    assert [result() for result in results] == [None]
