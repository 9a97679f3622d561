"""Fibers, blocking code on the thread of an event loop; and the hub of a loop, which drives and wakes them.

A fiber is a greenlet. Where a thread would wait, a fiber *parks*: control goes back to the coroutine that
drives it, and the loop runs other things. A wake, from any thread, lets the coroutine resume it. So one
thread runs thousands of blocking calls, and a switch between two of them happens only where one waits. Each
fiber has a copy of the context variables of the code that started it.

A coroutine that awaits a blocking call drives its fiber itself (`call`), so the result of the call is
returned in the step of the loop in which it came: no cancellation falls between the two. Fibers without a
caller, as a session's heartbeat, have tasks of their own (`spawn`).

**Cancellation.** A blocking call cannot be dropped in the middle: it may stand in a waiting line, or lead the
transaction of other calls. If it has a stop event, cancelling sets that event, and the call leaves the line
and gives back results. Otherwise its park raises CancelledError, as an interrupt does in a thread. Either
way the call may have to finish a transaction. The cancelled coroutine waits for that, but no longer than
limits.CANCEL_PATIENCE_S; after that, the fiber finishes alone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from greenlet import GreenletExit, getcurrent, greenlet

from fdbqueue.core import limits
from fdbqueue.core.errors import BlockingCall, WaitStopped, WrongLoop
from fdbqueue.core.runtime import RealRuntime, Runtime

_numbers = count(1)
_number_of: "WeakKeyDictionary[object, int]" = WeakKeyDictionary()  # of tasks, and of fibers without one


class Fiber(greenlet):  # type: ignore[misc]  # greenlet has no types
    """One blocking call. `turn` counts its parks, so that a late wake does not end a later park."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], Any],
        caller: "asyncio.Task[Any] | None" = None,
    ) -> None:
        """`caller` is the task that awaits the call; None for a fiber that runs alone."""
        super().__init__(function)
        self.gr_context = copy_context()
        self.loop = loop
        self.caller = caller
        self.turn = 0
        self.is_parked = False
        self._is_woken = self._may_go_on = False
        self._until: float | None = None
        self._awaited: asyncio.Future[None] | None = None

    @property
    def number(self) -> int:
        """Its thread, to blocking code: all calls of one task have the same, and no thread has such an id.
        Not the task's own id, which Python gives to a later task, too.
        """
        owner = self if self.caller is None else self.caller
        return _number_of.get(owner) or _number_of.setdefault(owner, -next(_numbers))

    def park(self, timeout_s: float | None) -> bool:
        """Wait for `wake`, at most `timeout_s`; true if it was woken. For the fiber itself."""
        if self.loop.is_closed():
            raise GreenletExit  # nothing resumes it any more, so it unwinds
        self._is_woken = self._may_go_on = False
        self._until = None if timeout_s is None else self.loop.time() + max(0.0, timeout_s)
        self.is_parked = True
        try:
            self.parent.switch()
        finally:
            self.is_parked = False
            self.turn += 1
        return self._is_woken

    def hand_over(self, value: Any) -> None:
        """Return `value` from the `resume` that runs it, and go on at the next one. For the fiber itself."""
        self.parent.switch(value)

    # The rest is for the thread of the loop.

    def wake(self, turn: int) -> None:
        """End the park of that turn. If it has ended, do nothing."""
        if turn == self.turn and not self._may_go_on:
            self._is_woken = True
            self._go_on()

    def resume(self) -> Any:
        """Run until it parks, hands over a value, or ends; return the value, or its result."""
        self.parent = getcurrent()
        return self.switch()

    def interrupt(self, error: BaseException) -> Any:
        """As `resume`, but its park raises `error`."""
        self.parent = getcurrent()
        return self.throw(error)

    async def until_woken(self) -> None:
        """Return when it may be resumed. A cancelled call leaves the fiber parked, and may be repeated."""
        timer = None if self._until is None else self.loop.call_at(self._until, self._time_out, self.turn)
        try:
            while not self._may_go_on:
                self._awaited = self.loop.create_future()
                await self._awaited
        finally:
            if timer is not None:
                timer.cancel()

    def _time_out(self, turn: int) -> None:
        if turn == self.turn:
            self._go_on()

    def _go_on(self) -> None:
        self._may_go_on = True
        if self._awaited is not None and not self._awaited.done() and not self.loop.is_closed():
            self._awaited.set_result(None)


def current_fiber() -> Fiber | None:
    current = getcurrent()
    return current if isinstance(current, Fiber) else None


T = TypeVar("T")

_CALLS_IN_A_TURN = 20  # calls that did not wait; then other tasks and timers of the loop have their turn
_INTERRUPTS_MAX = 100  # the waits of one cleanup
_LOOKS_OF_PATIENCE = 10  # at the cancelled calls that a close waits for

_FORKED = "It was opened before this process was forked: open it again with fdbqueue.aio.open()."
_LOOP_CLOSED = "Its event loop is closed: open it again with fdbqueue.aio.open()."
_ANOTHER_LOOP = "Another event loop opened it: open it again with fdbqueue.aio.open()."
_ANOTHER_THREAD = "Another thread used it: code in threads needs a database of fdbqueue.open()."


class Wakeable(Protocol):
    """The target of a wake: a sleeper, or a coroutine that awaits a future."""

    def wake(self, turn: int) -> None: ...


class Sleeper(Wakeable, Protocol):
    """A fiber, or a thread outside of the loop. It waits by `park`."""

    turn: int

    def park(self, timeout_s: float | None) -> bool: ...


class ThreadSleeper:
    """A thread that waits: one without a loop, as at the end of a program."""

    def __init__(self, runtime: Runtime) -> None:
        self.turn = 0
        self._woken = runtime.event()

    def park(self, timeout_s: float | None) -> bool:
        return self._woken.wait(timeout_s)

    def wake(self, turn: int) -> None:  # noqa: ARG002  # it waits once
        self._woken.set()


class Settable(Protocol):
    def set(self) -> None: ...


class Unheard:
    """A stop event that ends nothing: a cancelled call goes on to its end."""

    def set(self) -> None:
        """Do nothing."""


class Hub:
    """Fibers of one event loop. Only `wake` and `post` may be called in other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runtime: Runtime | None = None) -> None:
        """`runtime`: that of the loop's thread; by default this process's."""
        self.loop = loop
        self.runtime: Runtime = RealRuntime() if runtime is None else runtime
        self._thread_id = self.runtime.thread_id()
        self._process_id = self.runtime.process_id()
        self._posted: deque[tuple[Wakeable, int]] = deque()
        self._will_drain = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends: dict[asyncio.Task[Any], Fiber] = {}  # those of cancelled calls, in order
        self._calls_without_a_wait = 0
        self.outlasts_cancels = False
        """True for a worker's own loop: if a handler cancels all its tasks, fibers without a caller go on."""

    # -- waking -------------------------------------------------------------------------------------------

    def wake(self, sleeper: Wakeable, turn: int) -> None:
        """Wake a sleeper, in any thread. Wakes of other threads share one call of the loop."""
        if isinstance(sleeper, ThreadSleeper) or self.runtime.thread_id() == self._thread_id:
            sleeper.wake(turn)
            return
        self._posted.append((sleeper, turn))
        if not self._will_drain:  # looked at after the append, and `_drain` clears it before it looks
            self._will_drain = True
            with suppress(RuntimeError):  # the loop is closed: its fibers do not go on
                self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._will_drain = False
        while self._posted:
            sleeper, turn = self._posted.popleft()
            sleeper.wake(turn)

    def sleeper(self) -> Sleeper:
        """The sleeper for code that has to wait now. Raises: BlockingCall on the thread of the running loop,
        outside of a fiber; in a fiber of another loop, as that loop would wait.
        """
        fiber = current_fiber()
        if fiber is not None and fiber.loop is self.loop:
            return fiber
        if fiber is not None or (self.runtime.thread_id() == self._thread_id and self.loop.is_running()):
            raise BlockingCall
        return ThreadSleeper(self.runtime)

    # -- running ------------------------------------------------------------------------------------------

    def require_here(self) -> None:
        """Raises WrongLoop unless this code runs on this hub's loop, in the process that opened it."""
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if not is_here or self.is_forked:
            closed = _LOOP_CLOSED if self.loop.is_closed() else _ANOTHER_LOOP
            raise WrongLoop(reason=_FORKED if self.is_forked else closed)

    @property
    def is_forked(self) -> bool:
        return self._process_id != self.runtime.process_id()

    def require_thread(self) -> None:
        """Raises WrongLoop in another thread than that of the loop, while the loop runs."""
        if self.runtime.thread_id() != self._thread_id and self.loop.is_running():
            raise WrongLoop(reason=_ANOTHER_THREAD)

    async def call(
        self, function: Callable[[], T], stop: Settable | None = None, undo: Callable[[T], None] | None = None
    ) -> T:
        """Run a blocking function in a fiber. If this call is cancelled, it sets `stop`, or interrupts the
        function; if there is a result all the same, `undo` takes it back. Raises: WrongLoop, the errors of
        the function.
        """
        self.require_here()
        answer: T = await self._advance(Fiber(self.loop, function, asyncio.current_task()), stop, undo)
        return answer

    async def iterate(self, iterator: Callable[[], Iterable[T]]) -> AsyncIterator[T]:
        """The values of a blocking iterator, all in one fiber; it makes each of them when it is needed."""
        self.require_here()
        fiber = Fiber(self.loop, partial(_hand_over_all, iterator), asyncio.current_task())
        while True:
            value: T = await self._advance(fiber)
            if fiber.dead:
                return
            try:
                yield value
            except BaseException:  # the loop over the values was left
                await self._finish(fiber, None, None)
                raise

    async def _advance(
        self, fiber: Fiber, stop: Settable | None = None, undo: Callable[[Any], None] | None = None
    ) -> Any:
        """Run a fiber until it ends, or hands over a value. Returns its result, or the value."""
        if self._calls_without_a_wait >= _CALLS_IN_A_TURN:
            self._calls_without_a_wait = 0
            await asyncio.sleep(0)  # before the call: a cancel here has no result to take back
        self._calls_without_a_wait += 1
        answer = fiber.resume()
        while fiber.is_parked:
            self._calls_without_a_wait = 0
            try:
                await fiber.until_woken()
            except asyncio.CancelledError as cancelled:
                raise cancelled from await self._finish(fiber, stop, undo)
            except GeneratorExit:  # the coroutine was closed, or dropped, and cannot await
                if not self.loop.is_closed():
                    self._start_end(fiber, stop, undo)
                raise
            answer = fiber.resume()
        return answer

    async def _finish(
        self, fiber: Fiber, stop: Settable | None, undo: Callable[[Any], None] | None
    ) -> BaseException | None:
        """Let a cancelled fiber end. Return then, or when patience is over; further cancels do not count.
        Returns the error that ended the fiber, if one did. The loop logs an error that comes later.
        """
        end = self._start_end(fiber, stop, undo)
        until = self.loop.time() + limits.CANCEL_PATIENCE_S
        while not end.done() and self.loop.time() < until:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([end], timeout=until - self.loop.time())
        return end.exception() if end.done() and not end.cancelled() else None

    def _start_end(
        self, fiber: Fiber, stop: Settable | None, undo: Callable[[Any], None] | None
    ) -> asyncio.Task[Any]:
        end = self._start(fiber, partial(self._end, fiber, stop, undo))
        self._note_end(end, fiber)
        return end

    def _note_end(self, end: asyncio.Task[Any], fiber: Fiber) -> None:
        self._ends[end] = fiber
        end.add_done_callback(self._ends.pop)

    def outlast_cancelled_calls(self, patience_s: float) -> None:
        """Wait until the calls that were cancelled by now have ended. For a fiber. It gives up if none of
        them got an answer for `patience_s`. Looks are counted, not the time: a process that stood still for
        minutes has not waited for an answer. The functions of `finish` count, too.
        """
        ends, sleeper, looks = list(self._ends), self.sleeper(), 0
        while looks < _LOOKS_OF_PATIENCE and (left := [end for end in ends if not end.done()]):
            turns = self._turns_of(left)
            wake = partial(_wake, sleeper, sleeper.turn)
            left[0].add_done_callback(wake)
            sleeper.park(patience_s / _LOOKS_OF_PATIENCE)
            left[0].remove_done_callback(wake)
            looks = looks + 1 if turns == self._turns_of(left) else 0

    def _turns_of(self, ends: Iterable[asyncio.Task[Any]]) -> list[tuple[Fiber, int] | None]:
        fibers = [self._ends.get(end) for end in ends]
        return [fiber and (fiber, fiber.turn) for fiber in fibers]

    async def _end(self, fiber: Fiber, stop: Settable | None, undo: Callable[[Any], None] | None) -> None:
        with suppress(asyncio.CancelledError, WaitStopped):
            if stop is None:
                answer = fiber.interrupt(asyncio.CancelledError())
            else:
                stop.set()
                answer = None
            while not fiber.dead:
                await self._until_woken(fiber)
                answer = fiber.resume()
            if undo is not None:
                await self._undo(partial(undo, answer))

    async def _undo(self, function: Callable[[], object]) -> None:
        task = asyncio.current_task()
        assert task is not None, "the task of a cancelled call runs it"
        fiber = self._ends[task] = Fiber(self.loop, function, task)
        await self._advance(fiber)

    def begin(self, function: Callable[[], object], name: str) -> None:
        """As `spawn`, on the loop's thread: the function runs at once, until it waits."""
        fiber = Fiber(self.loop, function)
        fiber.resume()
        if not fiber.dead:
            self._start(fiber, partial(self._drive_on, fiber)).set_name(name)

    def spawn(self, function: Callable[[], object], name: str) -> Fiber:
        """Run a blocking function in a fiber without a caller, in this thread or another."""
        fiber = Fiber(self.loop, function)
        self._in_thread_of_loop(self._drive_alone, fiber, name)
        return fiber

    def finish(self, function: Callable[[], object]) -> None:
        """As `spawn`, for the rest of a call: a database is not closed before its end."""
        self._in_thread_of_loop(self._finish_alone, Fiber(self.loop, function))

    def _in_thread_of_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function now in the loop's thread, soon from another. A closed loop calls nothing."""
        if self.runtime.thread_id() != self._thread_id:
            self.loop.call_soon_threadsafe(function, *arguments)
        elif not self.loop.is_closed():
            function(*arguments)

    def _finish_alone(self, fiber: Fiber) -> None:
        self._note_end(self._drive_alone(fiber, "fdbqueue-finish"), fiber)

    def _drive_alone(self, fiber: Fiber, name: str) -> asyncio.Task[Any]:
        task = self._start(fiber, partial(self._drive, fiber))
        task.set_name(name)
        return task

    async def _drive(self, fiber: Fiber) -> None:
        await asyncio.sleep(0)
        fiber.resume()
        await self._drive_on(fiber)

    async def _drive_on(self, fiber: Fiber) -> None:
        while not fiber.dead:
            await self._until_woken(fiber)
            fiber.resume()

    async def _until_woken(self, fiber: Fiber) -> None:
        while True:
            try:
                return await fiber.until_woken()
            except asyncio.CancelledError:
                if not self.outlasts_cancels:
                    raise

    def _start(self, fiber: Fiber, drive: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Start a task that drives `fiber`. If the task is cancelled, as at the end of the loop, the fiber is
        interrupted. A callback does that, as a task that is cancelled before its first step runs nothing.
        """
        task = self.loop.create_task(drive())
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(self._driven, fiber, drive))
        return task

    def _driven(
        self, fiber: Fiber, drive: Callable[[], Coroutine[Any, Any, Any]], task: asyncio.Task[Any]
    ) -> None:
        if task.cancelled() and self.outlasts_cancels:  # before its first step
            self._start(fiber, drive)
        else:
            _unwind(fiber)


def _hand_over_all(iterator: Callable[[], Iterable[Any]]) -> None:
    fiber = current_fiber()
    assert fiber is not None, "the hub runs it in a fiber"
    for value in iterator():
        fiber.hand_over(value)


def _wake(sleeper: Sleeper, turn: int, _: object) -> None:
    sleeper.wake(turn)


def _unwind(fiber: Fiber) -> None:
    for _ in range(_INTERRUPTS_MAX):
        if fiber.dead:
            return
        with suppress(asyncio.CancelledError):
            fiber.interrupt(asyncio.CancelledError())


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}


def hub_of(loop: asyncio.AbstractEventLoop, runtime: Runtime | None = None) -> Hub:
    """The hub of a loop, made at first use on the thread of the loop. `runtime`: as in Hub."""
    hub = _hubs.get(loop)
    if hub is None:
        for ended in [other for other in list(_hubs) if other.is_closed()]:
            _hubs.pop(ended, None)  # another thread may have done so
        hub = _hubs[loop] = Hub(loop, runtime)
    return hub
