"""The embedded engine on an event loop: it reads at once, and commits in a thread.

A read looks into mapped memory. A commit of a directory waits for the disk and for other processes, so one
thread for each open directory makes them: all that wait are one batch. The commits of a private database wait
for no disk, and are made on the loop.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from queue import SimpleQueue

from fdbqueue.aio.fiber import current_fiber
from fdbqueue.aio.futures import let_fibers_park
from fdbqueue.aio.hub import Hub
from fdbqueue.aio.runtime import LoopEvent, LoopRuntime
from fdbqueue.aio.threads import in_thread
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import FDBError
from fdbqueue.core.seam import Transaction as EngineTransaction
from fdbqueue.embedded.store import Store, acquire, acquire_private
from fdbqueue.embedded.surface import Future, PendingFuture
from fdbqueue.embedded.transaction import Database, Transaction
from fdbqueue.embedded.writes import CommitRequest, Flush

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

    def commit(self) -> Future:
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
