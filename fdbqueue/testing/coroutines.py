"""Clients that are coroutine functions: processes with an event loop and a database of fdbqueue.aio.

The engine of such a machine behaves as both engines do on a loop. At some points only the fiber waits, as
for an answer of a cluster; at others the whole loop waits, as for a read of the embedded engine.

The loop runs in virtual time, and is one simulated thread. Where a loop waits for its selector, this one
parks its task. Each turn of the loop is a scheduling point, so other machines run between two turns.
"""

import asyncio
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from fdbqueue.aio.database import Database
from fdbqueue.aio.engines import LoopTransaction
from fdbqueue.aio.hub import Hub, current_fiber
from fdbqueue.aio.runtime import LoopRuntime
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded.store import Store
from fdbqueue.testing.engine import NONE, FaultyDatabase, FaultyTransaction, Machine
from fdbqueue.testing.scheduler import POINT_S, Scheduler, Task
from fdbqueue.testing.trace import Operation, Trace

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


T = TypeVar("T")

_ALONE = 0.5  # the part of the points at which only the fiber waits
_LOOK_S = 0.1

# The fibers of a call see both, as they have a copy of its context.
_operation: ContextVar[Operation | None] = ContextVar("operation", default=None)
_name: ContextVar[str | None] = ContextVar("name", default=None)


class LoopMachine(Machine):
    """A machine with one thread, which runs an event loop."""

    def begin(self, hub: Hub) -> None:
        self.hub = hub
        self.runtime = LoopRuntime(hub)

    def operation(self) -> Operation | None:
        operation = _operation.get()
        return operation if operation is not None and operation.ended is None else None

    def thread_name(self) -> str:
        return _name.get() or self.name

    def pass_on(self) -> None:
        if current_fiber() is not None and self.random.random() < _ALONE:
            self.runtime.sleep(POINT_S)
        else:
            self.scheduler.point()

    def wait(self, seconds: float) -> None:
        if current_fiber() is not None:
            self.runtime.sleep(seconds)
        else:
            self.scheduler.park(self.scheduler.now + seconds)


class LoopEngine(FaultyDatabase):
    """The shared store, as a machine with a loop sees it. Commits wait in fibers of their own."""

    def __init__(self, store: Store, machine: LoopMachine) -> None:
        super().__init__(store, machine)
        self._hub = machine.hub

    def create_transaction(self) -> "LoopEngineTransaction":
        return LoopEngineTransaction(self, self._hub, commits_at_once=False)


class LoopEngineTransaction(LoopTransaction, FaultyTransaction):
    """A transaction of both kinds: the commit is that of fdbqueue.aio, the steps meet faults."""


class LoopClient:
    """A simulated process with an event loop, as its coroutine function sees it."""

    def __init__(self, machine: LoopMachine, db: Database, trace: Trace, pace: float) -> None:
        self.db = db
        self.runtime = machine.runtime
        self.random = Random(machine.random.random())
        self._machine = machine
        self._trace = trace
        self._pace = pace

    @property
    def name(self) -> str:
        return self._machine.name

    async def call(self, subject: str, name: str, argument: Any, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()`, and record it in the trace as an operation on `subject`.

        A call that was cancelled has ended with its CancelledError.
        """
        now = self.runtime.monotonic
        operation = self._trace.begin(now(), self._machine.thread_name(), subject, name, argument)
        outer = _operation.set(operation)
        try:
            result = await function()
        except (Exception, asyncio.CancelledError) as error:
            self._trace.end(now(), operation, None, error)
            raise
        finally:
            _operation.reset(outer)
        self._trace.end(now(), operation, result)
        return result

    async def pause(self, mean_s: float) -> None:
        """As `Client.pause`: other tasks of the loop run meanwhile."""
        if self.random.random() < 0.6:
            await asyncio.sleep(self.random.expovariate(1 / mean_s) * self._pace)

    def calm(self) -> None:
        """Switch the faults of this machine off."""
        self._machine.set_faults(NONE)

    def task(
        self, function: Callable[["LoopClient"], Coroutine[Any, Any, T]], name: str
    ) -> "asyncio.Task[T]":
        """Run a coroutine function in another task of this loop."""
        return asyncio.create_task(self._named(function, f"{self.name}/{name}"))

    async def _named(self, function: Callable[["LoopClient"], Coroutine[Any, Any, T]], name: str) -> T:
        _name.set(name)
        _operation.set(None)
        return await function(self)


def run_client(
    function: Callable[[LoopClient], Any], machine: LoopMachine, store: Store, trace: Trace, pace: float
) -> None:
    """Run a client to its end, on a loop of its own, in the current task of the scheduler. Raises: its
    errors; AssertionError for errors that no code awaited, and for tasks that do not end.
    """
    loop = SimulatedLoop(machine.scheduler)
    hub = Hub(loop, machine.thread)
    machine.begin(hub)
    database = Database(hub, BlockingDatabase(LoopEngine(store, machine), machine.runtime))
    loop.run_until_complete(_whole(function, LoopClient(machine, database, trace, pace)))
    loop.close()
    assert not (errors := loop.unheard_errors()), f"errors that no code awaits: {errors}"


async def _whole(function: Callable[[LoopClient], Awaitable[object]], client: LoopClient) -> None:
    await function(client)
    await client.db.close()
    # Calls that go on after they were cancelled end by themselves. If one does not, the run is stuck.
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(_LOOK_S)
