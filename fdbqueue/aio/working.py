"""A worker on the loop of its caller."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from fdbqueue.aio.coroutine_handler import CoroutineHandler, FiberWorker
from fdbqueue.aio.database import Database
from fdbqueue.aio.verbs import database_of, plain
from fdbqueue.core.errors import InvalidArgument, WrongType
from fdbqueue.core.handle import Handle
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.fleet.asynchronous import is_asynchronous
from fdbqueue.fleet.hooks import Hooks
from fdbqueue.fleet.options import WorkerKeywords, WorkerOptions
from fdbqueue.fleet.status import WorkerStatus


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
