"""Tasks as they come: the loop that takes, acks after the body, and releases if the body was left.

While a body runs, a heartbeat renews the lease of its task. One heartbeat serves all bodies of a database.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.aio.coroutine_handler import HeldTask
from fdbqueue.aio.database import Database
from fdbqueue.aio.handle import HandleFace
from fdbqueue.aio.hub import Unheard
from fdbqueue.aio.verbs import plain
from fdbqueue.core import limits
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument, NotTaken
from fdbqueue.core.sessions.keeper import Silence
from fdbqueue.core.sessions.session import Session
from fdbqueue.fleet.heartbeat import Heartbeat
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.settling import ITS_THREAD


class Leases:
    """A heartbeat for the bodies that run: the heartbeat of workers. A service of the database."""

    def __init__(self, database: BlockingDatabase) -> None:
        self._runtime = database.runtime
        silence = Silence(database.runtime)
        self._heartbeat = heartbeat = Heartbeat(database, silence, None, _unused, self._next_chore, _unused)
        heartbeat.start()
        self.add, self.remove, self.holds = heartbeat.add, heartbeat.remove, heartbeat.holds

    def close(self) -> None:
        self._heartbeat.end(limits.CLOSE_TIMEOUT_S)

    def is_needed(self) -> bool:
        """True: its fibers run until it is closed."""
        return True

    def _next_chore(self) -> float:
        return self._runtime.monotonic() + limits.WORKER_WAIT_S


def _unused(_: object) -> None:
    """Do nothing: the code around a body knows for how long it may run, and its next take meets the error."""


def leases_of(database: BlockingDatabase) -> Leases:
    return database.service("consumed leases", Leases)


class Consumption:
    """An asynchronous iterator over the tasks of a queue. It also is a context manager: its end releases.

    An `async for` does not tell its iterator that the body was left by a break or an exception. The iterator
    is then dropped, and releases the task in a fiber of its own; with the context manager, the release has
    happened when the block is left.
    """

    __slots__ = ("_ack", "_database", "_hold", "_holder", "_is_asked", "_options", "_queue", "_take")

    def __init__(
        self,
        queue: HandleFace[Any],
        take: Callable[..., Awaitable[Any]],
        ack: Callable[..., Awaitable[Any]],
        db: Database,
        options: dict[str, Any],
    ) -> None:
        self._queue = queue
        self._take = take
        self._ack = ack
        self._database = db
        self._options = options
        self._holder: tuple[Leases, Session] | None = None
        self._hold: Hold | None = None
        self._is_asked = False

    def __aiter__(self) -> "Consumption":
        return self

    async def __anext__(self) -> HeldTask:
        if self._is_asked:  # it would ack the task of the other loop, or lose it
            raise InvalidArgument(name="consume", wanted="called once for each loop", got=self)
        self._is_asked = True
        try:
            return await self._next()
        finally:
            self._is_asked = False

    async def _next(self) -> HeldTask:
        leases, session = self._holder = self._holder or await self._find_holder()
        await self._end_body(leases)
        task = await self._take(self._database, **self._options)
        if task is None:
            raise StopAsyncIteration
        taken_at = task.taken or self._database.blocking.runtime.now()
        self._hold = Hold(self._queue.blocking, task, self._database.blocking, session, taken_at)
        leases.add(self._hold)
        return HeldTask.of(task, self._queue.name, self._hold)

    async def _find_holder(self) -> tuple[Leases, Session]:
        given, queue = plain(self._options["session"]), self._queue.blocking

        def find(db: BlockingDatabase) -> tuple[Leases, Session]:
            return leases_of(db), queue._own_session(db) if given is None else given

        return await self._database.hub.call(partial(find, self._database.blocking), Unheard())

    async def _end_body(self, leases: Leases) -> None:
        hold = self._hold
        if hold is None:
            return
        hold.claim(ITS_THREAD)  # from now on, a renewal that finds no lease is no loss
        try:
            await self._ack(self._database, hold.lease)
        except NotTaken:
            if hold.ended_by is None:
                raise
        self._hold = None  # only now: an ack that was cancelled may have left the task taken
        leases.remove(hold)

    async def aclose(self) -> None:
        """Release the task of the body that was left. If it is cancelled, it goes on to its end."""
        if self._hold is not None:
            leave, self._hold = self._leave_of(self._hold), None
            await self._database.hub.call(leave, Unheard())

    async def __aenter__(self) -> "Consumption":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        hub = self._database.hub
        if self._hold is not None and not self._database.closed and not hub.loop.is_closed():
            hub.finish(self._leave_of(self._hold))

    def _leave_of(self, hold: Hold) -> Any:
        assert self._holder is not None, "there is one before the first take"
        return partial(_leave, hold, self._holder[0])


def _leave(hold: Hold, leases: Leases) -> None:
    hold.claim(ITS_THREAD)
    leases.remove(hold)
    # The body has ended its lease, or it is over. If the database is closed, its session gives the task back.
    with suppress(NotTaken, DatabaseClosed):
        hold.queue.release(hold.database, hold.lease)
