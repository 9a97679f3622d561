"""Workers with coroutine functions as handlers: on the loop of their caller, or on one in another thread.

The threads of the machinery of `fdbqueue.Worker` are fibers; its leases, outcomes and waits are unchanged. A
coroutine function runs as a task of the loop while its fiber waits. The supervisor of a fleet runs in a
thread.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial, update_wrapper
from typing import Any, TypeVar, Unpack
from weakref import WeakSet

from fdbqueue.aio.database import Database, Transaction
from fdbqueue.aio.engines import on_loop
from fdbqueue.aio.hub import Hub, Unheard, current_fiber, hub_of
from fdbqueue.aio.runtime import in_fiber, in_thread, park_until_done
from fdbqueue.aio.verbs import Face, constructor_of, database_of, plain, target_of
from fdbqueue.core.arguments import checked_function, require_finished
from fdbqueue.core.database import Handle, as_database, require_open
from fdbqueue.core.errors import BlockingCall, InvalidArgument, LeaseLost, TaskCancelled, WrongFace, WrongType
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.fleet import functions
from fdbqueue.fleet.around import Once, checked_once
from fdbqueue.fleet.functions import Tasks
from fdbqueue.fleet.held import HeldTask as BlockingHeldTask
from fdbqueue.fleet.held import Hold, step_arguments
from fdbqueue.fleet.options import Hooks, WorkerKeywords, WorkerOptions
from fdbqueue.fleet.status import WorkerStatus
from fdbqueue.fleet.supervisor import Fleet as BlockingFleet
from fdbqueue.fleet.supervisor import FleetStatus
from fdbqueue.fleet.worker import Worker as BlockingWorker
from fdbqueue.fleet.worker import is_asynchronous

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


def current_task() -> HeldTask:
    """As `fdbqueue.current_task`, in a coroutine function. Raises: InvalidArgument; WrongFace elsewhere."""
    task = functions.current_task()
    if not isinstance(task, HeldTask):
        raise WrongFace("A thread runs this function: call fdbqueue.current_task there.")
    return task


class CoroutineHandler:
    """A coroutine function, in the shape of a blocking handler: its fiber waits for a task of the loop."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, object]]) -> None:
        with suppress(AttributeError):  # a partial has no name
            update_wrapper(self, function)
        self._function = function
        if isinstance(function, Tasks):
            function.require_on_loop()

    def __call__(self, *arguments: Any) -> object:
        *transaction, given_task = arguments
        is_batch = isinstance(given_task, list)
        holds: list[Hold] = [task.hold for task in (given_task if is_batch else (given_task,))]
        hold = holds[0]
        hub: Hub = hold.database.runtime.hub  # type: ignore[attr-defined]  # a LoopRuntime
        if isinstance(self._function, Tasks) and self._function.is_plain(given_task):
            return in_thread(hub, partial(self._function, given_task))
        given = [Transaction(hub, tr) for tr in transaction]
        tasks = [HeldTask.of(one.lease, one.task.queue, one) for one in holds]
        coroutine = self._function(*given, tasks if is_batch else tasks[0])
        running = hub.loop.create_task(_without_exit(hub, coroutine), context=copy_context())
        running.add_done_callback(lambda _: coroutine.close())  # cancelled at once, it has not begun

        def cancel_without_tasks() -> None:
            if all(one.cancelled or one.lost for one in holds):
                running.cancel()

        for one in holds:
            one.interrupt = cancel_without_tasks
        cancel_without_tasks()  # since before its begin
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

    def _call_once(self, name: str, function: Once) -> object:
        """Call it on the loop; a coroutine runs there as a task."""
        result = function()
        if not asyncio.iscoroutine(result):
            return require_finished(name, result)
        hub: Hub = self._runtime.hub  # type: ignore[attr-defined]  # a LoopRuntime
        try:
            result = in_fiber(hub, partial(_without_exit, hub, result))()
        except asyncio.CancelledError:
            raise RuntimeError(f"{name} was cancelled") from None
        if isinstance(result, ENDS_A_LOOP):
            raise result
        return result

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


T = TypeVar("T")

_log = logger("fdbqueue.worker")


class LoopThread:
    def __init__(self, runtime: Runtime) -> None:
        """`runtime`: that of the threads of this process. It tells the time there, too."""
        self._loop = asyncio.new_event_loop()
        self._has_ended = False
        _all.add(self)
        self._hub: Hub
        started = runtime.event()

        def start() -> None:
            self._hub = hub_of(self._loop, runtime)
            self._hub.outlasts_cancels = True
            started.set()

        self._loop.call_soon(start)
        runtime.spawn(self._run, "fdbqueue-loop")
        started.wait()

    def call(self, function: Callable[[Hub], T]) -> T:
        """Run a blocking function in a fiber there, and wait here. Raises: BlockingCall in a fiber."""
        if current_fiber() is not None:
            raise BlockingCall

        async def run() -> T:
            return await self._hub.call(lambda: function(self._hub))

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def end(self) -> None:
        """End the loop, and return at once; what still runs there is cancelled."""
        self._has_ended = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def end_in_child(self) -> None:
        """In a child that a handler has forked, end the process at the next turn of the loop."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(os._exit, 0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            while not self._has_ended:
                try:
                    runner.get_loop().run_forever()
                except ENDS_A_LOOP as error:
                    title = "a handler has ended the loop of its worker; it goes on: %s"
                    _log.warning(title, type(error).__name__)
            self._hub.outlasts_cancels = False


_all: "WeakSet[LoopThread]" = WeakSet()


def _after_fork_in_child() -> None:
    for thread in list(_all):
        thread.end_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class LoopWorker(FiberWorker):
    """A `fdbqueue.Worker` with a coroutine function as its handler, and an event loop of its own."""

    __slots__ = ("_given", "_loop", "_on_loop", "_stops")

    def __init__(self, db: AnyDatabase, queues: Any, handler: Any, **options: Any) -> None:
        """Check all in this thread. `start` makes the loop, and opens the queues again in it."""
        awaited = CoroutineHandler(handler)
        super().__init__(db, queues, awaited, **options)
        self._given = as_database(db)
        self._on_loop = partial(self._open, self._given, queues, awaited, options)
        self._stops = 0
        self._loop: LoopThread

    def start(self, *, until_empty: bool = False) -> None:
        self._require_startable()
        self._loop = LoopThread(self._given.runtime)
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

    def _require_open(self) -> None:
        require_open(self._given)  # closing it does not close that of the loop
        super()._require_open()

    def _chores(self) -> float:
        if self._given.closed:
            self._feed.end_waits()
        return super()._chores()

    def _say_ended(self) -> None:
        try:
            self._database.close()
        finally:
            super()._say_ended()
            self._loop.end()


class Worker(Handle):
    """`fdbqueue.Worker` on the loop of its caller: `await worker.run()`.

    Up to `concurrency` calls of `handler`, a coroutine function, run at a time. Queues are names, or those of
    fdbqueue.aio. All else is as in `fdbqueue.Worker`, which also runs blocking functions.
    """

    __slots__ = ("_hub", "_make", "_making", "_worker")

    def __init__(
        self,
        db: Database,
        queues: Any,
        handler: Callable[..., Any],
        *,
        hooks: Hooks = Hooks(),  # noqa: B008  # a value
        root: Any = DEFAULT_ROOT,
        setup: Once | None = None,
        teardown: Once | None = None,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Raises: WrongType for a blocking function; InvalidArgument, WrongFace, NotADatabase."""
        if not isinstance(handler, Tasks) and not is_asynchronous(handler):
            raise WrongType(name="handler", wanted="a coroutine function (async def)", got=handler)
        WorkerOptions.checked(**options)
        checked_once("setup", setup, True)
        checked_once("teardown", teardown, True)
        database = database_of(db)
        self._hub = database.hub
        make = partial(FiberWorker, database.blocking, plain(queues), CoroutineHandler(handler))
        self._make = partial(make, hooks=hooks, root=root, setup=setup, teardown=teardown, **options)
        self._worker: FiberWorker | None = None
        self._making = asyncio.Lock()

    def __repr__(self) -> str:
        return f"aio.{super().__repr__()}"

    def _shown(self) -> dict[str, Any]:
        return {} if self._worker is None else self._worker._shown()

    async def start(self, *, until_empty: bool = False) -> None:
        """Open the queues, and begin to work, in the background. Raises as `fdbqueue.Worker` does."""
        async with self._making:  # a second start at once finds the worker used
            if self._worker is None:
                self._worker = await self._hub.call(self._make)
        await self._hub.call(partial(self._worker.start, until_empty=until_empty))

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`, or until the queues are empty. If it is cancelled, running handlers may end.

        Raises: as `run` of `fdbqueue.Worker`.
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

    @property
    def drained(self) -> bool:
        """True if `fdbqueue fleet drain` has told it to end: its process should end, too."""
        return self._started().drained

    def status(self) -> WorkerStatus:
        return self._started().status()

    def _started(self) -> FiberWorker:
        if self._worker is None:
            raise InvalidArgument(name="worker", wanted="a worker that has been started", got=self)
        return self._worker
