"""Workers with a coroutine handler: on the loop of their caller, or on one in another thread."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack
from weakref import WeakSet

from fdbqueue.aio.committing import on_loop
from fdbqueue.aio.coroutine_handler import ENDS_A_LOOP, CoroutineHandler, FiberWorker
from fdbqueue.aio.database import Database
from fdbqueue.aio.fiber import current_fiber
from fdbqueue.aio.hub import Hub, hub_of
from fdbqueue.aio.verbs import database_of, plain
from fdbqueue.core.database import Handle, as_database, require_open
from fdbqueue.core.errors import BlockingCall, InvalidArgument, WrongType
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.fleet.asynchronous import is_asynchronous
from fdbqueue.fleet.hooks import Hooks
from fdbqueue.fleet.options import WorkerKeywords, WorkerOptions
from fdbqueue.fleet.status import WorkerStatus

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
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Raises: WrongType for a blocking function; InvalidArgument, WrongFace, NotADatabase."""
        if not is_asynchronous(handler):
            raise WrongType(name="handler", wanted="a coroutine function (async def)", got=handler)
        WorkerOptions.checked(**options)
        database = database_of(db)
        self._hub = database.hub
        make = partial(FiberWorker, database.blocking, plain(queues), CoroutineHandler(handler))
        self._make = partial(make, hooks=hooks, root=root, **options)
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

    def status(self) -> WorkerStatus:
        return self._started().status()

    def _started(self) -> FiberWorker:
        if self._worker is None:
            raise InvalidArgument(name="worker", wanted="a worker that has been started", got=self)
        return self._worker
