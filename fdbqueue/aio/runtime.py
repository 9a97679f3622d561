"""LoopRuntime: the `fdbqueue.core.runtime.Runtime` of a database that belongs to an event loop.

Its threads are fibers, and to wait means to park. Outside of fibers, as at the end of the program when the
loop has gone, it waits as a thread does. A fiber also waits for blocking work in a thread, and for a
coroutine in a task of the loop.
"""

import inspect
import weakref
from asyncio import Task
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from fdbqueue.aio.hub import Fiber, Hub, Sleeper, current_fiber
from fdbqueue.core import runtime as runtimes
from fdbqueue.core.arguments import checked_function
from fdbqueue.core.runtime import Listeners, Waitable


class LoopEvent:
    """An event that fibers wait for, and that any thread may set."""

    __slots__ = ("_hub", "_is_set", "_listeners", "_waiting")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._waiting: dict[Sleeper, int] = {}
        self._listeners = Listeners()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for sleeper, turn in list(self._waiting.items()):
            self._hub.wake(sleeper, turn)
        self._listeners.tell()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        sleeper = self._hub.sleeper()
        self._waiting[sleeper] = sleeper.turn
        try:
            # Looked at after adding: another thread may have set it just before.
            return self._is_set or sleeper.park(timeout) or self._is_set
        finally:
            del self._waiting[sleeper]

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._listeners.add(callback, self.is_set)


class LoopLock:
    """A lock between fibers. Holders may park, so a second fiber may find it taken."""

    __slots__ = ("_hub", "_is_locked", "_waiting")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_locked = False
        self._waiting: deque[LoopEvent] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        now = self._hub.runtime.monotonic
        until = None if timeout < 0 else now() + timeout
        while self._is_locked:
            left_s = None if until is None else until - now()
            if not blocking or (left_s is not None and left_s <= 0):
                return False
            self._wait(left_s)
        self._is_locked = True
        return True

    def _wait(self, timeout_s: float | None) -> None:
        released = LoopEvent(self._hub)
        self._waiting.append(released)
        try:
            released.wait(timeout_s)
        except BaseException:
            if released.is_set():  # woken and interrupted at once: the wake is for the next one
                self._wake_next()
            raise
        finally:
            if not released.is_set():
                self._waiting.remove(released)

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class LoopThread:
    """A fiber without a caller, in the shape of a thread."""

    def __init__(self, hub: Hub, target: Callable[[], object], name: str) -> None:
        self._ended = LoopEvent(hub)
        self._target = target
        hub.spawn(self._run, name)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()


class LoopRuntime:
    """The clock and the randomness of the loop's thread; locks, events and threads of one event loop."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        thread = hub.runtime
        self.now, self.now_us, self.monotonic = thread.now, thread.now_us, thread.monotonic
        self.random_bytes, self.random = thread.random_bytes, thread.random
        self.process_id, self.host_name, self.at_exit = thread.process_id, thread.host_name, thread.at_exit
        self.memory_bytes = thread.memory_bytes

    def sleep(self, seconds: float) -> None:
        due_s = self.monotonic() + seconds
        self.hub.sleeper().park(max(0.0, seconds))
        while (left_s := due_s - self.monotonic()) > 0:  # a timer of a loop may be early
            self.hub.sleeper().park(left_s)

    def lock(self) -> LoopLock:
        return LoopLock(self.hub)

    def event(self) -> LoopEvent:
        return LoopEvent(self.hub)

    def spawn(self, target: Callable[[], None], name: str) -> LoopThread:
        return LoopThread(self.hub, target, name)

    def thread_id(self) -> int:
        fiber = current_fiber()
        return self.hub.runtime.thread_id() if fiber is None else fiber.number

    def thread_is_alive(self) -> Callable[[], bool]:
        fiber = current_fiber()
        return self.hub.runtime.thread_is_alive() if fiber is None else _life_of(fiber)

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        return runtimes.wait_any(self, futures, timeout_s)


def _life_of(fiber: Fiber) -> Callable[[], bool]:
    """Whether the task that awaits the fiber runs; of a fiber without a task, whether the fiber does."""
    if fiber.caller is None:
        return lambda: not fiber.dead
    caller = weakref.ref(fiber.caller)

    def is_alive() -> bool:
        task = caller()
        return task is not None and not task.done()

    return is_alive


T = TypeVar("T")


class Job:
    __slots__ = ("_done", "_error", "_function", "_result")

    def __init__(self, hub: Hub, function: Callable[[], Any]) -> None:
        self._function = function
        self._done = LoopEvent(hub)
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # `result` raises it in the fiber that waits
            self._error = error
        self._done.set()

    def result(self) -> Any:
        """Park until the function has returned, and return its result. Raises: its errors. An interrupt is
        raised after that, as the work goes on without the fiber.
        """
        try:
            self._done.wait()
        except BaseException:
            self._done.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._result


def in_thread(hub: Hub, function: Callable[[], T]) -> T:
    """Run `function` in a thread of its own, and park until it returns. Raises: its errors."""
    job = Job(hub, function)
    hub.runtime.spawn(job.run, "fdbqueue-aio")
    result: T = job.result()
    return result


def in_fiber(hub: Hub, function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """`function` as a blocking one, which is called with `given`. Raises InvalidArgument, DeferredBody."""
    if not inspect.iscoroutinefunction(function):
        checked_function("function", function)
    return partial(_run, hub, function, given)


def _run(hub: Hub, function: Callable[..., Any], given: tuple[Any, ...], *_: Any) -> Any:
    result = function(*given)
    if not inspect.iscoroutine(result):
        return result
    running = hub.loop.create_task(result, context=copy_context())
    park_until_done(hub, running)
    return running.result()


def park_until_done(hub: Hub, running: Task[Any]) -> None:
    """Park until the task has ended. If this call is interrupted, the task is cancelled."""
    ended = LoopEvent(hub)
    running.add_done_callback(lambda _: ended.set())
    try:
        ended.wait()
    except BaseException:
        running.cancel()
        ended.wait()
        raise
