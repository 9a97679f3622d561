"""Handlers that are coroutine functions, for the machinery of `fdbqueue.Worker` in fibers.

The threads of that machinery are fibers; its leases, outcomes and waits are unchanged. A coroutine function
runs as a task of the loop while its fiber waits.
"""

import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial, update_wrapper
from typing import Any

from fdbqueue.aio.database import Database
from fdbqueue.aio.hub import Hub
from fdbqueue.aio.threads import in_fiber, park_until_done
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import target_of
from fdbqueue.core.errors import LeaseLost, TaskCancelled
from fdbqueue.fleet.held import HeldTask as BlockingHeldTask
from fdbqueue.fleet.held import Hold, step_arguments
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
