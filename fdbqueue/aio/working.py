"""Workers on an event loop.

The machinery of `fdbqueue.Worker` runs in fibers: its threads, leases, outcomes and waits are unchanged. A
coroutine function is run as a task of the loop while its fiber waits.

`LoopWorker` is what `fdbqueue.Worker` becomes if its handler is a coroutine function: it has a loop of its
own, in one thread. `Worker` works on the loop of its caller.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial, update_wrapper
from typing import Any, TypeVar, Unpack

from fdbqueue.aio.committing import on_loop
from fdbqueue.aio.database import Database
from fdbqueue.aio.fiber import current_fiber
from fdbqueue.aio.hub import Hub, hub_of
from fdbqueue.aio.runtime import LoopEvent
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import plain
from fdbqueue.database import as_database
from fdbqueue.errors import BlockingCall, InvalidArgument, LeaseLost, WrongType
from fdbqueue.fleet.asynchronous import is_asynchronous
from fdbqueue.fleet.held import HeldTask as BlockingHeldTask
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.hooks import Hooks
from fdbqueue.fleet.options import WorkerKeywords
from fdbqueue.fleet.status import WorkerStatus
from fdbqueue.fleet.worker import Worker as BlockingWorker
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.runtime import RealRuntime
from fdbqueue.seam import AnyDatabase

T = TypeVar("T")


class HeldTask(BlockingHeldTask):
    """The task that a worker passes to a coroutine function: its database and its `progress` are awaited."""

    __slots__ = ()

    @property
    def database(self) -> Database:  # type: ignore[override]  # the same database, awaited
        """The open database of the worker, for reads and writes of the handler. Do not close it.

        Raises InvalidArgument for a task that no worker passed to a handler.
        """
        blocking = self._held().database
        return Database(blocking.runtime.hub, blocking)  # type: ignore[attr-defined]  # a LoopRuntime

    async def progress(self, fraction: float) -> None:  # type: ignore[override]  # the same verb, awaited
        """Tell the progress, from 0 to 1. All else is as in `fdbqueue.HeldTask.progress`."""
        await self.database.hub.call(partial(BlockingHeldTask.progress, self, fraction))


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
        return self._finished(hub, coroutine, hold)

    def _finished(self, hub: Hub, coroutine: Coroutine[Any, Any, object], hold: Hold) -> object:
        """Park until the coroutine has ended. When the lease is taken away, the coroutine is cancelled."""
        ended = LoopEvent(hub)
        running = hub.loop.create_task(_without_exit(coroutine), context=copy_context())
        running.add_done_callback(lambda _: coroutine.close())  # cancelled at once, it has not begun
        running.add_done_callback(lambda _: ended.set())
        hold.interrupt = running.cancel
        try:
            ended.wait()
        except BaseException:
            running.cancel()
            ended.wait()
            raise
        if running.cancelled():
            raise LeaseLost(id=hold.task.id) if hold.lost else RuntimeError("the handler was cancelled")
        result = running.result()
        if isinstance(result, SystemExit):
            raise result
        return result


async def _without_exit(coroutine: Coroutine[Any, Any, object]) -> object:
    """The result of a coroutine, or its SystemExit: if a task raised that, its loop would end."""
    try:
        return await coroutine
    except SystemExit as error:
        return error


class FiberWorker(BlockingWorker):
    """A worker with fibers in place of threads. Its methods that wait are for fibers, too."""

    _chooses = False

    def _places(self) -> int:
        return self._options.concurrency

    def _overran(self, hold: Hold) -> None:
        """The coroutine is cancelled, so no process has to be replaced for it."""
        self._pool.replace(lambda: self._give_up(hold))


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._hub: Hub
        started = RealRuntime.event()

        def start() -> None:
            self._hub = hub_of(self._loop)
            started.set()

        self._loop.call_soon(start)
        RealRuntime().spawn(self._run, "fdbqueue-loop")
        started.wait()

    def call(self, function: Callable[[Hub], T]) -> T:
        """Run a blocking function in a fiber there, and wait for it here. Raises: its errors."""
        fiber = current_fiber()
        if fiber is not None and fiber.loop is self._loop:
            return function(self._hub)
        if fiber is not None:
            raise BlockingCall  # the loop of that fiber would stand still

        async def run() -> T:
            return await self._hub.call(lambda: function(self._hub))

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def end(self) -> None:
        """End the loop, and return at once; what still runs there is cancelled."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class LoopWorker(FiberWorker):
    """A `fdbqueue.Worker` with a coroutine function as its handler, and an event loop of its own."""

    def __init__(self, db: AnyDatabase, queues: Any, handler: Any, **options: Any) -> None:
        """Check all in this thread. `start` makes the loop, and opens the queues again in it."""
        awaited = CoroutineHandler(handler)
        super().__init__(db, queues, awaited, **options)
        self._on_loop = partial(self._open, as_database(db), queues, awaited, options)
        self._stops = 0
        self._loop: LoopThread

    def start(self, *, until_empty: bool = False) -> None:
        self._require_startable()
        self._loop = LoopThread()
        try:
            self._loop.call(self._on_loop)
        except BaseException:
            self._loop.end()
            raise
        self._loop.call(lambda _: super(LoopWorker, self).start(until_empty=until_empty))

    def _open(self, db: Any, queues: Any, handler: Any, options: Any, hub: Hub) -> None:
        ended = self._ended  # other threads may wait for it by now
        database = on_loop(hub, db)
        try:
            super().__init__(database, queues, handler, **options)
        except BaseException:
            database.close()
            raise
        finally:
            self._ended = ended
        if self._stops:
            super().stop(at_once=self._stops > 1)

    def stop(self, *, at_once: bool = False) -> None:
        # Counted before its event is set: `_open` may replace that at this moment.
        self._stops = max(self._stops, 2 if at_once else 1)
        super().stop(at_once=at_once)

    def _say_ended(self) -> None:
        self._database.close()
        super()._say_ended()
        self._loop.end()


class Worker:
    """`fdbqueue.Worker` on the loop of its caller: `await worker.run()`.

    Up to `concurrency` calls of `handler`, a coroutine function, run at a time. Queues are names, or those of
    fdbqueue.aio. All else is as in `fdbqueue.Worker`, which also runs blocking functions.
    """

    def __init__(
        self,
        db: Database,
        queues: Any,
        handler: Callable[..., Any],
        *,
        hooks: Hooks = Hooks(),  # noqa: B008  # a value
        root: Any = DEFAULT_ROOT,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Raises: WrongType for a blocking function."""
        if not is_asynchronous(handler):
            raise WrongType(name="handler", wanted="a coroutine function (async def)", got=handler)
        self._hub = db.hub
        make = partial(FiberWorker, db.blocking, plain(queues), CoroutineHandler(handler))
        self._make = partial(make, hooks=hooks, root=root, **options)
        self._worker: FiberWorker | None = None

    async def start(self, *, until_empty: bool = False) -> None:
        """Open the queues, and begin to work, in the background. Raises as `fdbqueue.Worker` does."""
        if self._worker is None:
            self._worker = await self._hub.call(self._make)
        await self._hub.call(partial(self._worker.start, until_empty=until_empty))

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`, or until the queues are empty. If it is cancelled, running handlers may end.

        Raises: QueueNotFound when the last of the queues has been dropped, WorkerUsed at the second call.
        """
        await self.start(until_empty=until_empty)
        worker = self._started()
        try:
            await self.join()
        finally:
            worker.stop()
            await self.join()
        if worker.error is not None:
            raise worker.error

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more tasks, and return at once. All else is as in `fdbqueue.Worker.stop`."""
        if self._worker is not None:
            self._worker.stop(at_once=at_once)

    async def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; true if it has come."""
        return await self._hub.call(partial(self._started().join, timeout_s))

    @property
    def error(self) -> Exception | None:
        """The error that ended the worker: `run` raises it."""
        return self._started().error

    @property
    def emptied(self) -> bool:
        """True if the worker ended because its queues were empty."""
        return self._started().emptied

    def status(self) -> WorkerStatus:
        return self._started().status()

    def _started(self) -> FiberWorker:
        if self._worker is None:
            raise InvalidArgument(name="worker", wanted="a worker that has been started", got=self)
        return self._worker
