"""Both engines on an event loop: futures that are awaited, one callback each, and commits that park a fiber.

A future of the official binding that a fiber waits for parks the fiber: this module replaces the one method
through which the binding waits. Code in a thread waits as before, so a program may use both. Code that takes
the binding's transactions (its directory layer, a program's own functions) works in a fiber as it is.

The embedded engine reads at once, and commits in a thread. A read looks into mapped memory. A commit of a
directory waits for the disk and for other processes, so one thread for each open directory makes them: all
that wait are one batch. The commits of a private database wait for no disk, and are made on the loop.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial, wraps
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fdbqueue.aio.hub import Hub, current_fiber, hub_of
from fdbqueue.aio.runtime import LoopEvent, LoopRuntime, in_thread
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.open import open_cluster
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import FDBError, KeyValue
from fdbqueue.core.seam import Transaction as EngineTransaction
from fdbqueue.embedded.store import Store, acquire, acquire_private
from fdbqueue.embedded.surface import Future as EngineFuture
from fdbqueue.embedded.surface import PendingFuture
from fdbqueue.embedded.transaction import Database, Transaction
from fdbqueue.embedded.writes import CommitRequest, Flush

T = TypeVar("T")


class Ready:
    """The coroutine that awaits one future. A `Wakeable`."""

    __slots__ = ("_awaited",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited: asyncio.Future[None] = loop.create_future()

    def wake(self, turn: int) -> None:  # noqa: ARG002  # it waits once
        if not self._awaited.done():
            self._awaited.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        return self._awaited.__await__()


class Future(Generic[T]):
    """The result of a step of a transaction: await it. Cancelling the await cancels the step.

    Raises: the engine's FDBError.
    """

    __slots__ = ("_hub", "_owner", "_raw")

    def __init__(self, hub: Hub, raw: Any, owner: object = None) -> None:
        """`owner`: the transaction. The binding cancels the reads of one that nothing refers to."""
        self._hub = hub
        self._raw = raw
        self._owner = owner

    def __await__(self) -> Generator[Any, None, T]:
        raw, hub = self._raw, self._hub
        hub.require_here()
        if not raw.is_ready():
            ready = Ready(hub.loop)
            raw.on_ready(lambda _: hub.wake(ready, 0))
            try:
                yield from ready.__await__()
            except (asyncio.CancelledError, GeneratorExit):  # cancelled, or its coroutine was closed
                raw.cancel()
                raise
        result: T = raw.wait()
        return result

    def is_ready(self) -> bool:
        return bool(self._raw.is_ready())

    def cancel(self) -> None:
        self._raw.cancel()

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"A future has no {name!r}, but its result may: await it first.")


class Range:
    """The rows of a range: `async for row in ...` reads them as they are needed, `await ...` gives a list."""

    __slots__ = ("_hub", "_owner", "_raw")

    def __init__(self, hub: Hub, raw: Any, owner: object) -> None:
        self._hub = hub
        self._raw = raw
        self._owner = owner

    def __await__(self) -> Generator[Any, None, list[KeyValue]]:
        return self.to_list().__await__()

    async def to_list(self) -> list[KeyValue]:
        """All rows. Raises: the engine's FDBError."""
        rows: Callable[[], list[KeyValue]] = self._raw.to_list
        return await self._hub.call(rows)

    def __aiter__(self) -> AsyncIterator[KeyValue]:
        return self._hub.iterate(lambda: self._raw)


def open_on(hub: Hub, cluster_file: str | None) -> Any:
    """The binding's database, in a fiber. Raises: ClientLibraryMissing, ClientLibraryTooOld."""
    database = in_thread(hub, partial(open_cluster, cluster_file))  # loads a library, and reads files
    let_fibers_park()
    return database


def let_fibers_park() -> None:
    """From now on, the binding's futures park the fibers that wait for them."""
    future: Any = importlib.import_module("fdb.impl").Future
    waits = future.block_until_ready
    if hasattr(waits, "__wrapped__"):
        return

    @wraps(waits)
    def block_until_ready(self: Any) -> None:
        fiber = current_fiber()
        if fiber is None:
            waits(self)
        elif not self.is_ready():
            ready = LoopEvent(hub_of(fiber.loop))
            self.on_ready(lambda _: ready.set())
            ready.wait()

    future.block_until_ready = block_until_ready


_UNKNOWN_RESULT = 1021

_Waiting = tuple[CommitRequest, Callable[[], None]]


class Underneath(BlockingDatabase):
    """A blocking database for the thread of one loop: its locks hold back fibers, but not threads."""

    runtime: LoopRuntime

    def create_transaction(self) -> EngineTransaction:
        """A fresh transaction of the engine. Raises DatabaseClosed; WrongLoop in another thread."""
        self.runtime.hub.require_thread()
        return super().create_transaction()


class CommitThread:
    """The thread that commits for the fibers of one loop on one directory."""

    def __init__(self, hub: Hub, store: Store) -> None:
        self._hub = hub
        self._committer = store.committer
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._has_ended = False
        RealRuntime().spawn(self._work, "fdbqueue-commits")

    def commit(self, request: CommitRequest) -> None:
        """Park until `request` is finished, or until its deadline. Raises: DatabaseClosed."""
        if self._has_ended:
            raise DatabaseClosed
        done = LoopEvent(self._hub)
        self._waiting.put((request, done.set))
        left_s = request.deadline_s - RealRuntime.monotonic()
        if not done.wait(None if left_s == inf else max(0.0, left_s)):
            request.late = in_thread(self._hub, self._committer.late)

    def end(self) -> None:
        self._has_ended = True
        self._waiting.put(None)

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            waiting = [first, *self._others()]
            self._committer.commit_all([request for request, _ in waiting])
            for _, tell in waiting:
                tell()

    def _others(self) -> list[_Waiting]:
        found = [self._waiting.get() for _ in range(self._waiting.qsize())]
        if None in found:
            self._waiting.put(None)  # after these
        return [waiting for waiting in found if waiting is not None]


class LoopDatabase(Database):
    """A database of the embedded engine for one event loop. `commits`: None for a private one."""

    def __init__(
        self, store: Store, runtime: LoopRuntime, commits: CommitThread | None, flush: Flush = Flush.NOW
    ) -> None:
        super().__init__(store, runtime, flush)
        self.hub = runtime.hub
        self._commits = commits

    def create_transaction(self) -> "LoopTransaction":
        self.require_open()
        return LoopTransaction(self, self.hub, commits_at_once=self._commits is None)

    def commit(self, request: CommitRequest) -> None:
        if self._commits is None or current_fiber() is None:  # without a fiber: the loop has ended
            super().commit(request)
        else:
            self._commits.commit(request)

    def close(self) -> None:
        if self._commits is None or current_fiber() is None:
            super().close()
        else:
            in_thread(self.hub, super().close)
        if self._commits is not None:
            self._commits.end()


class LoopTransaction(Transaction):
    """A transaction of an event loop. On a directory, `commit` returns a pending future, as on a cluster. A
    fiber of its own waits for the commit. So an interrupt of the call that waits for the future leaves the
    commit alone, and the call can still learn its result.
    """

    def __init__(self, database: Database, hub: Hub, commits_at_once: bool) -> None:
        super().__init__(database)
        self._hub = hub
        self._commits_at_once = commits_at_once

    def commit(self) -> EngineFuture:
        if self._commits_at_once or not self._hub.loop.is_running():
            return super().commit()
        future = PendingFuture(self._runtime)
        self._hub.begin(partial(self._complete, future), "fdbqueue-commit")
        return future

    def _complete(self, future: PendingFuture) -> None:
        try:
            future.complete(super().commit().wait())
        except Exception as error:  # raised where the future is awaited
            future.complete(error=error)
        except BaseException:  # the loop ends while the commit is under way
            future.complete(error=FDBError(_UNKNOWN_RESULT))
            raise


def on_loop(hub: Hub, database: BlockingDatabase) -> BlockingDatabase:
    """A database over the same engine, for fibers of `hub`. Closing it leaves the engine open."""
    made = _on_loop(hub, database)
    made.wishes, made.manner = database.wishes, database.manner
    return made


def _on_loop(hub: Hub, database: BlockingDatabase) -> BlockingDatabase:
    runtime, engine = LoopRuntime(hub), database.engine
    if not isinstance(engine, Database):
        let_fibers_park()
        return Underneath(engine, runtime, session_ttr_s=database.session_ttr_s)
    store = engine.lmdb_store
    commits = None if store.private else CommitThread(hub, store)
    shared = LoopDatabase(store, runtime, commits, engine.flush)
    end = None if commits is None else commits.end
    return Underneath(shared, runtime, end, database.session_ttr_s)


def open_directory(path: str, runtime: LoopRuntime, *, shared: bool, flush: Flush) -> LoopDatabase:
    # The store may have users in other threads, and its own threads are real ones.
    store = in_thread(runtime.hub, partial(acquire, path, RealRuntime(), shared))
    return LoopDatabase(store, runtime, CommitThread(runtime.hub, store), flush)


def open_private(runtime: LoopRuntime) -> LoopDatabase:
    return LoopDatabase(acquire_private(RealRuntime()), runtime, None)
