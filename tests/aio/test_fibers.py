"""Fibers, their locks and events, and the hub that drives them."""

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import pytest
from greenlet import getcurrent

from fdbqueue.aio.engines import Future
from fdbqueue.aio.hub import Hub, _hubs
from fdbqueue.core import limits
from fdbqueue.core.errors import BlockingCall
from fdbqueue.core.runtime import RealRuntime
from tests.aio.support import cancel_soon, hub, on_loop, runtime, until


@on_loop
async def test_an_event_of_another_thread_wakes_a_fiber() -> None:
    here = runtime()
    event = here.event()
    waiting = asyncio.create_task(hub().call(lambda: event.wait(60)))
    await asyncio.sleep(0)
    await asyncio.to_thread(event.set)

    assert await waiting is True


@on_loop
async def test_wakes_of_other_threads_share_a_call_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    here, loop, calls = runtime(), asyncio.get_running_loop(), []
    posted = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        calls.append(callback)
        return posted(callback, *args, **kwargs)

    events = [here.event() for _ in range(500)]
    waiting = [asyncio.create_task(hub().call(event.wait)) for event in events]
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)

    def set_all() -> None:
        for event in events:
            event.set()

    setter = threading.Thread(target=set_all)
    setter.start()
    setter.join()  # the loop stands still meanwhile, so all wakes are of one turn
    monkeypatch.undo()
    await asyncio.gather(*waiting)

    assert len(calls) == 1


class LastPost(deque[Any]):
    """Posted wakes. Another thread posts the last one once the loop has found no more."""

    def __init__(self, post: Callable[[], None]) -> None:
        super().__init__()
        self._late = [threading.Thread(target=post)]

    def __bool__(self) -> bool:
        is_there = len(self) > 0
        while not is_there and self._late:
            late = self._late.pop()
            late.start()
            late.join()
        return is_there


class Noted:
    """A sleeper that notes whether it was woken."""

    is_woken = False

    def wake(self, turn: int) -> None:  # noqa: ARG002  # it waits once
        self.is_woken = True


@on_loop
async def test_a_wake_that_is_posted_at_the_end_of_a_drain_is_not_lost() -> None:
    here, first, last = hub(), Noted(), Noted()
    here._posted = LastPost(lambda: here.wake(last, 0))
    await asyncio.to_thread(here.wake, first, 0)
    await asyncio.sleep(0)

    assert (first.is_woken, last.is_woken) == (True, True)


@on_loop
async def test_a_lock_is_held_across_a_wait() -> None:
    here, order = runtime(), []
    lock = here.lock()

    def hold(name: str) -> None:
        with lock:
            order.append(f"{name} begins")
            here.sleep(0.001)
            order.append(f"{name} ends")

    await asyncio.gather(*(hub().call(lambda name=name: hold(name)) for name in "abc"))  # type: ignore[misc]

    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


@on_loop
async def test_the_values_of_an_iterator_come_from_one_fiber() -> None:
    here = runtime()

    def values() -> Iterator[Any]:
        for _ in range(50):
            here.sleep(0)
            yield getcurrent()

    assert len({fiber async for fiber in hub().iterate(values)}) == 1


@on_loop
async def test_an_iterator_makes_no_value_before_it_is_needed() -> None:
    made, closed = [], []

    def values() -> Iterator[int]:
        try:
            for number in range(50):
                made.append(number)
                yield number
        finally:
            closed.append(True)

    async with aclosing(hub().iterate(values)) as numbers:
        async for number in numbers:
            if number == 3:
                break

    assert (made, closed) == ([0, 1, 2, 3], [True])


@on_loop
async def test_the_error_of_an_iterator_ends_its_loop() -> None:
    def values() -> Iterator[int]:
        yield 1
        raise KeyError("planned")

    numbers = hub().iterate(values)
    assert await anext(numbers) == 1
    with pytest.raises(KeyError):
        await anext(numbers)


@on_loop
async def test_a_cancel_ends_an_iterator_that_waits() -> None:
    here, closed = runtime(), []

    def values() -> Iterator[int]:
        try:
            here.event().wait()
            yield 1
        finally:
            closed.append(True)

    async def read() -> None:
        async for _ in hub().iterate(values):
            pass

    assert (await cancel_soon(read())).cancelled()
    assert closed == [True]


@on_loop
async def test_an_interrupted_waiter_passes_the_lock_on() -> None:
    here = runtime()
    lock = here.lock()
    lock.acquire()
    first, second = (asyncio.create_task(hub().call(lock.acquire)) for _ in range(2))
    await asyncio.sleep(0)
    lock.release()  # wakes the first
    first.cancel()

    assert await second is True


@on_loop
async def test_a_call_that_cannot_end_finishes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CANCEL_PATIENCE_S", 0.001)
    here, undone = runtime(), list[str]()
    answered, stop = here.event(), here.event()

    def work() -> str:
        answered.wait()
        return "late"

    assert (await cancel_soon(hub().call(work, stop, undone.append))).cancelled()
    assert stop.is_set()
    assert undone == []
    answered.set()
    await until(lambda: undone == ["late"])


@on_loop
async def test_a_second_cancel_does_not_cut_the_cleanup_short() -> None:
    here, cleaned = runtime(), []
    goes_on = here.event()

    def work() -> None:
        try:
            here.event().wait()
        finally:
            goes_on.wait()
            cleaned.append(True)

    working = asyncio.create_task(hub().call(work))
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.sleep(0)
    assert not working.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert cleaned == [True]


@on_loop
async def test_a_closed_coroutine_runs_its_cleanup() -> None:
    here, cleaned = runtime(), []

    def work() -> None:
        try:
            here.event().wait()
        finally:
            here.sleep(0.001)
            cleaned.append(True)

    coroutine = hub().call(work)
    coroutine.send(None)
    coroutine.close()
    await until(lambda: cleaned == [True])


@on_loop
async def test_a_spawned_fiber_is_a_thread_to_blocking_code() -> None:
    here = runtime()
    goes_on = here.event()

    def wait() -> None:
        goes_on.wait()

    thread = here.spawn(wait, "test")
    assert thread.is_alive()
    goes_on.set()
    await hub().call(thread.join)

    assert not thread.is_alive()


@on_loop
async def test_calls_of_one_task_are_one_thread_to_blocking_code() -> None:
    here = runtime()

    async def twice() -> tuple[int, int]:
        return await hub().call(here.thread_id), await hub().call(here.thread_id)

    pairs = await asyncio.gather(*(asyncio.create_task(twice()) for _ in range(3)))

    assert all(first == second for first, second in pairs)
    assert len({first for first, _ in pairs}) == 3
    assert RealRuntime.thread_id() not in {first for first, _ in pairs}


@on_loop
async def test_a_task_never_has_the_number_of_an_ended_one() -> None:
    here = runtime()
    numbers = [await asyncio.create_task(hub().call(here.thread_id)) for _ in range(100)]

    assert len(set(numbers)) == 100


color: ContextVar[str] = ContextVar("color", default="none")


@on_loop
async def test_a_fiber_keeps_its_context_across_waits() -> None:
    here, seen = runtime(), []

    def work() -> None:
        color.set(color.get() + "!")
        here.sleep(0.001)
        seen.append(color.get())

    async def run(name: str) -> None:
        color.set(name)
        await hub().call(work)
        assert color.get() == name

    await asyncio.gather(*(run(name) for name in ("red", "green", "blue")))

    assert sorted(seen) == ["blue!", "green!", "red!"]


class Late:
    """A future of an engine that another thread completes."""

    def __init__(self) -> None:
        self._callback: Callable[[Any], None] | None = None
        self._is_ready = False

    def is_ready(self) -> bool:
        return self._is_ready

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def complete(self) -> None:
        self._is_ready = True
        assert self._callback is not None
        self._callback(self)

    def wait(self) -> str:
        return "done"


@on_loop
async def test_an_awaited_future_is_completed_by_another_thread() -> None:
    late = Late()

    async def wait() -> str:
        return await Future(hub(), late)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    # No other callback is due, so only the completion ends the sleep of the loop.
    threading.Timer(0.05, late.complete).start()

    assert await waiting == "done"


def test_hubs_of_closed_loops_are_forgotten() -> None:
    async def use() -> None:
        await hub().call(lambda: None)

    for _ in range(3):
        asyncio.run(use())

    assert sum(loop.is_closed() for loop in _hubs) == 1  # the last one, until there is another


@on_loop
async def test_the_error_of_a_cancelled_call_is_its_cause() -> None:
    here = runtime()
    stop = here.event()

    def work() -> None:
        stop.wait()
        raise KeyError("while it ended")

    working = await cancel_soon(hub().call(work, stop))
    with pytest.raises(asyncio.CancelledError) as raised:
        await working

    assert isinstance(raised.value.__cause__, KeyError)


@on_loop
async def test_a_wake_that_is_late_does_not_end_a_later_wait() -> None:
    here = runtime()
    event = here.event()

    def wait_twice() -> bool:
        fiber = getcurrent()
        turn = fiber.turn
        event.wait(0.001)
        hub().loop.call_soon(fiber.wake, turn)  # as posted by a thread before the timeout
        return here.event().wait(0.01)

    assert await hub().call(wait_twice) is False


@on_loop
async def test_a_wait_leaves_no_timer() -> None:
    here = runtime()
    event = here.event()
    waiting = asyncio.create_task(hub().call(lambda: event.wait(7777)))
    await asyncio.sleep(0)
    event.set()
    await waiting
    timers: list[Any] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]

    assert [
        timer for timer in timers if timer.when() > here.monotonic() + 7000 and not timer.cancelled()
    ] == []


def test_fibers_that_nothing_refers_to_end_with_their_loop() -> None:
    ends: list[str] = []

    async def leave_one_behind() -> None:
        here = runtime()

        def wait_for_ever() -> None:
            try:
                here.event().wait()
            finally:
                try:
                    here.sleep(60)  # cleanup may wait, and is interrupted, too
                finally:
                    ends.append("ended")

        here.spawn(wait_for_ever, "test")
        await asyncio.sleep(0.01)
        gc.collect()
        ends.append("loop ends")

    asyncio.run(leave_one_behind())

    assert ends == ["loop ends", "ended"]


@on_loop
async def test_an_event_that_is_set_before_the_wait_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread sets it between the look and the registration of the waiter."""
    event, sleeper = runtime().event(), Hub.sleeper

    def set_meanwhile(self: Hub) -> Any:
        event.set()
        return sleeper(self)

    monkeypatch.setattr(Hub, "sleeper", set_meanwhile)

    assert await asyncio.wait_for(hub().call(event.wait), 5)


@on_loop
async def test_a_future_that_is_completed_by_its_cancel_wakes_nothing() -> None:
    late = Late()

    async def wait() -> None:
        await Future(hub(), late)

    late.cancel = late.complete  # type: ignore[attr-defined]
    assert (await cancel_soon(wait())).cancelled()


@on_loop
async def test_a_closed_coroutine_cancels_its_future() -> None:
    late, cancels = Late(), []
    late.cancel = lambda: cancels.append(late)  # type: ignore[attr-defined]

    async def wait() -> None:
        await Future(hub(), late)

    waiting = wait()
    waiting.send(None)
    waiting.close()

    assert cancels == [late]


@on_loop
async def test_a_fiber_waits_for_no_event_of_another_loop() -> None:
    """Its own loop would stand still."""

    async def event() -> Any:
        return runtime().event()

    elsewhere = await asyncio.to_thread(asyncio.run, event())
    with pytest.raises(BlockingCall):
        await hub().call(lambda: elsewhere.wait(0.01))
