"""An event loop of asyncio in virtual time. It is one simulated thread.

Where a loop waits for its selector, this one parks its task. Each turn of the loop is a scheduling point, so
other machines run between two turns.
"""

import asyncio
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

from fdbqueue.core.error_root import FdbQueueError
from fdbqueue.core.fdberror import FDBError
from fdbqueue.testing.scheduler import Scheduler, Task

Ts = TypeVarTuple("Ts")

_ANSWERS = (FdbQueueError, FDBError)


class SimulatedSelector:
    """The place of a loop's selector: no file is ever ready, and a wake ends the wait."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler = scheduler
        self._task = task
        self._is_woken = False

    def select(self, timeout_s: float | None) -> list[Any]:
        if self._is_woken or timeout_s == 0:
            self._scheduler.point()
        else:
            self._scheduler.park(None if timeout_s is None else self._scheduler.now + timeout_s)
        self._is_woken = False
        return []

    def wake(self) -> None:
        self._is_woken = True
        self._scheduler.wake(self._task)


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of the current task of a scheduler. It has timers and callbacks, and no files."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        task = scheduler.current
        assert task is not None, "only a client has a loop"
        self._tasks: list[asyncio.Task[Any]] = []
        self._scheduler = scheduler
        self._selector = SimulatedSelector(scheduler, task)
        task.state = _LoopState(self)

    def time(self) -> float:
        return self._scheduler.now

    def is_closed(self) -> bool:
        # When the simulation is over, no fiber has to be resumed any more.
        return self._scheduler.over or super().is_closed()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        # A timer of the scheduler may call this while the loop is parked.
        handle = super().call_soon(callback, *args, context=context)
        self._selector.wake()
        return handle

    def create_task(self, *args: Any, **kwargs: Any) -> Any:
        task = super().create_task(*args, **kwargs)
        self._tasks.append(task)
        return task

    def unheard_errors(self) -> list[BaseException]:
        """Return the errors of tasks that no code has awaited, except for answers of the database. A
        cancelled call that goes on alone may have such an answer. Another loop would log all of them.
        """
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        errors = [task.exception() for task in ended if getattr(task, "_log_traceback", False)]
        return [error for error in errors if error is not None and not isinstance(error, _ANSWERS)]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._scheduler.over:
            raise AssertionError(context["message"]) from context.get("exception")

    def _write_to_self(self) -> None:
        self._selector.wake()

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no files."""


class _LoopState:
    """The running loop, its current task and its hooks: the interpreter has one of each for a real thread."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._is_running = False
        self._current: asyncio.Task[Any] | None = None
        self._hooks: Any = None

    def leave(self) -> None:
        self._is_running = _get_running_loop() is self._loop
        if not self._is_running:
            return
        self._current, self._hooks = asyncio.current_task(self._loop), sys.get_asyncgen_hooks()
        if self._current is not None:
            _leave_task(self._loop, self._current)
        _set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)

    def enter(self) -> None:
        if not self._is_running:
            return
        _set_running_loop(self._loop)
        sys.set_asyncgen_hooks(*self._hooks)
        if self._current is not None:
            _enter_task(self._loop, self._current)
