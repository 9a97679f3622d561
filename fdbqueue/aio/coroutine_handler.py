"""Handlers that are coroutine functions, for the machinery of `fdbqueue.Worker` in fibers.

The threads of that machinery are fibers; its leases, outcomes and waits are unchanged. A coroutine function
runs as a task of the loop while its fiber waits. The supervisor of a fleet runs in a thread.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial, update_wrapper
from typing import Any

from fdbqueue.aio.database import Database
from fdbqueue.aio.hub import Hub, Unheard, hub_of
from fdbqueue.aio.threads import in_fiber, in_thread, park_until_done
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import Face, constructor_of, target_of
from fdbqueue.core.arguments import checked_function
from fdbqueue.core.errors import LeaseLost, TaskCancelled
from fdbqueue.fleet.held import HeldTask as BlockingHeldTask
from fdbqueue.fleet.held import Hold, step_arguments
from fdbqueue.fleet.supervisor import Fleet as BlockingFleet
from fdbqueue.fleet.supervisor import FleetStatus
from fdbqueue.fleet.worker import Worker as BlockingWorker

ENDS_A_LOOP = (SystemExit, KeyboardInterrupt)
"""Errors that a loop raises as soon as one of its tasks or callbacks has raised them."""


class HeldTask(BlockingHeldTask):
    """The task that a worker passes to a coroutine function: its database and its `progress` are awaited."""

    __slots__ = ()

    @property
    def database(self) -> Database:  # type: ignore[override]  # the same database, awaited
        """The open database of the worker, for reads and writes of the handler. To close it does nothing.

        Raises InvalidArgument for a task that no worker passed to a handler.
        """
        blocking = self._held().database
        return Database(blocking.runtime.hub, blocking.lent())  # type: ignore[attr-defined]  # a LoopRuntime

    async def progress(self, fraction: float) -> None:  # type: ignore[override]  # the same verb, awaited
        """Tell the progress, from 0 to 1. All else is as in `fdbqueue.HeldTask.progress`."""
        await self.database.hub.call(partial(BlockingHeldTask.progress, self, fraction))

    async def step(self, *given: Any) -> Any:  # type: ignore[override]  # the same verb, awaited
        """A step of the work; its function may be a coroutine function: `await task.step("charge", charge)`,
        or `await task.step(tr, "charge", charge)`. All else is as in `fdbqueue.HeldTask.step`.
        """
        tr, name, function = step_arguments(given)
        hub = self.database.hub
        if tr is None:
            step = (name, in_fiber(hub, function))
        else:
            step = (target_of(tr).blocking, name, in_fiber(hub, function, tr))  # type: ignore[assignment]
        return await hub.call(partial(BlockingHeldTask.step, self, *step))


class CoroutineHandler:
    """A coroutine function, in the shape of a blocking handler: its fiber waits for a task of the loop."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, object]]) -> None:
        with suppress(AttributeError):  # a partial has no name
            update_wrapper(self, function)
        self._function = function

    def __call__(self, *arguments: Any) -> object:
        *transaction, task = arguments
        hold: Hold = task.hold
        hub: Hub = hold.database.runtime.hub  # type: ignore[attr-defined]  # a LoopRuntime
        given = [Transaction(hub, tr) for tr in transaction]
        coroutine = self._function(*given, HeldTask.of(hold.lease, task.queue, hold))
        running = hub.loop.create_task(_without_exit(hub, coroutine), context=copy_context())
        running.add_done_callback(lambda _: coroutine.close())  # cancelled at once, it has not begun
        hold.interrupt = running.cancel
        if hold.cancelled or hold.lost:  # since before its begin
            running.cancel()
        park_until_done(hub, running)
        if running.cancelled():
            raise _reason(hold)
        result = running.result()
        if isinstance(result, ENDS_A_LOOP):
            raise result
        return result


def _reason(hold: Hold) -> Exception:
    if hold.lost:
        return LeaseLost(id=hold.task.id)
    if hold.cancelled:
        return TaskCancelled(id=hold.task.id)
    return RuntimeError("the handler was cancelled")


async def _without_exit(hub: Hub, coroutine: Coroutine[Any, Any, object]) -> object:
    """The result of a coroutine, or the error with which a task would end its loop."""
    if hub.is_forked:  # another handler of the loop has forked: this task is the parent's
        os._exit(0)
    try:
        return await coroutine
    except ENDS_A_LOOP as error:
        return error


class FiberWorker(BlockingWorker):
    """A worker with fibers in place of threads. Its methods that wait are for fibers, too."""

    __slots__ = ()

    _chooses = False

    def _places(self) -> int:
        return self._options.concurrency

    def _overran(self, hold: Hold) -> None:
        """The coroutine is cancelled, so no process has to be replaced for it."""
        self._pool.replace(lambda: self._give_up(hold))


OnTick = Callable[[FleetStatus], object]


class Supervisor(BlockingFleet):
    """A `fdbqueue.Fleet` that looks at its database in `run`: a constructor on a loop must not wait."""

    def _require_all(self, root: Any) -> None:
        """Do nothing: `run` does it."""

    def run(self, on_tick: OnTick | None = None) -> None:
        super()._require_all(self._root)
        super().run(on_tick)


class Fleet(Face[Supervisor]):
    """`fdbqueue.Fleet` beside an event loop: `await fleet.run()`. The constructor reads nothing.

    The processes have loops of their own for handlers that are coroutine functions. The fleet handles no
    signals: `loop.add_signal_handler(signal.SIGTERM, fleet.stop)`. All else is as in `fdbqueue.Fleet`.
    """

    __slots__ = ()

    @constructor_of(Supervisor)
    def __init__(self) -> None: ...

    async def run(self, on_tick: OnTick | None = None) -> None:
        """Work until `stop`, or with `until_empty` until the queues are empty.

        The loop calls `on_tick` with the status several times a second.
        If it is cancelled, the fleet stops, and running handlers have `grace_s` to end; a second cancel stops
        it at once. Either way it returns when all processes have ended.
        Raises: as the constructor and `run` of `fdbqueue.Fleet`.
        """
        hub = hub_of(asyncio.get_running_loop())
        if on_tick is not None:
            on_tick = partial(_call_on, hub, checked_function("on_tick", on_tick))
        work = partial(in_thread, hub, partial(self._blocking.run, on_tick))
        running = hub.loop.create_task(hub.call(work, Unheard()))
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                self.stop(at_once=cancelled is not None)
                cancelled = error
        if cancelled is not None:
            raise cancelled from running.exception()
        running.result()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop as `fdbqueue.Fleet.stop` does, and return at once. A signal handler may call it."""
        self._blocking.stop(at_once=at_once)

    def status(self) -> FleetStatus:
        return self._blocking.status()


def _call_on(hub: Hub, function: OnTick, status: FleetStatus) -> None:
    """Call `function` on the loop, from another thread. Raises: its errors."""

    async def call() -> None:
        function(status)

    asyncio.run_coroutine_threadsafe(call(), hub.loop).result()
