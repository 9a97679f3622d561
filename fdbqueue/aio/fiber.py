"""Fibers: blocking code on the thread of an event loop.

A fiber is a greenlet. Where a thread would wait, a fiber *parks*: control goes back to the coroutine that
drives it, and the loop runs other things. A wake lets the coroutine resume it. So one thread runs thousands
of blocking calls, and a switch between two of them happens only where one waits.

Each fiber has a copy of the context variables of the code that started it.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from greenlet import GreenletExit, getcurrent, greenlet

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
