"""Clients that are coroutine functions: processes with an event loop and a database of fdbqueue.aio.

The engine of such a machine behaves as both engines do on a loop. At some points only the fiber waits, as
for an answer of a cluster; at others the whole loop waits, as for a read of the embedded engine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from random import Random
from typing import Any, TypeVar

from fdbqueue.aio.committing import LoopTransaction
from fdbqueue.aio.database import Database
from fdbqueue.aio.fiber import current_fiber
from fdbqueue.aio.hub import Hub
from fdbqueue.aio.runtime import LoopRuntime
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.embedded.store import Store
from fdbqueue.testing.engine import FaultyDatabase, FaultyTransaction, Machine
from fdbqueue.testing.faults import NONE
from fdbqueue.testing.loop import SimulatedLoop
from fdbqueue.testing.scheduler import POINT_S
from fdbqueue.testing.trace import Operation, Trace

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
