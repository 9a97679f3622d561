"""The server: tubes, connections that wait for a job, and the end of all.

A reserve is first tried in a batch. If there is no job, its connection waits in each tube that it watches.
For each such tube, one take of this process stands in the waiting line of the queue, and asks for as many
jobs as connections wait. A job that comes after its connection has got another one goes back at once, and no
attempt is counted.

A paused tube gives no jobs to the connections of this server; the queue itself is not paused.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from fdbqueue.aio.database import Database
from fdbqueue.aio.hub import Unheard
from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError, WaitStopped
from fdbqueue.core.runtime import Event
from fdbqueue.core.task import Task
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.batches import Batches, Verb, Want, refusal
from fdbqueue.integrations.beanstalkd.jobs import Held, Jobs, Taken
from fdbqueue.integrations.beanstalkd.tubes import DEFAULT, TIMER_MAX_S, Peer, Tube, Waiter
from fdbqueue.tasks import verbs

TUBES_MAX = 10_000
"""Tubes that connections may use and watch at a time."""
PAUSE_AFTER_ERROR_S = 1.0
STALE_LOOK_S = 5.0
STALE_LOOKED_AT = 200


class Server:
    """A server of one database on the running loop. `serve` runs it."""

    def __init__(self, database: Database, root: Any, max_job_size: int) -> None:
        self.database = database
        self.max_job_size = max_job_size
        self.loop = asyncio.get_running_loop()
        runtime = database.blocking.runtime
        self.now, self.random_bytes, self.runtime = runtime.now, runtime.random_bytes, runtime
        self.jobs = Jobs(database.blocking, root)
        self.batches = Batches(database, self.jobs)
        self.tubes = {DEFAULT: Tube(DEFAULT)}
        self.connections: set[Peer] = set()
        self.commands: Counter[str] = Counter()
        self.connections_seen = self.timeouts = self.total_jobs = 0
        self.is_draining = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # Tubes.

    def enter(self, name: str, how: str) -> Any:
        """The tube, with one more user of that kind; None if too many are used."""
        tube = self.tubes.get(name)
        if tube is None:
            if len(self.tubes) >= TUBES_MAX:
                self.tubes = {name: tube for name, tube in self.tubes.items() if tube.is_used}
            if len(self.tubes) >= TUBES_MAX:
                return None
            tube = self.tubes[name] = Tube(name)
        setattr(tube, how, getattr(tube, how) + 1)
        return tube

    def is_paused(self, tube: Tube) -> bool:
        return tube.paused_until > self.loop.time()

    def pause(self, name: str, seconds: int) -> None:
        tube = self.tubes.get(name) or self.tubes.setdefault(name, Tube(name))
        tube.pauses += 1
        tube.pause_s, tube.paused_until = seconds, self.loop.time() + seconds
        if tube.stop is not None:
            tube.stop.set()
        self.loop.call_later(min(seconds, TIMER_MAX_S), self._unpause, tube)

    def _unpause(self, tube: Tube) -> None:
        left_s = tube.paused_until - self.loop.time()
        if left_s > 0:
            self.loop.call_later(min(left_s, TIMER_MAX_S), self._unpause, tube)
            return
        tube.pause_s = 0
        self.stand(tube)

    # Reserves.

    def reserve(self, connection: Peer, timeout_s: float | None) -> None:
        connection.waiter = waiter = Waiter(self.loop, connection, timeout_s, self.stand)
        tubes = sorted(name for name, tube in connection.watched.items() if not self.is_paused(tube))
        if tubes:
            self.batches.add(Want(tubes, waiter.tried))
        else:
            waiter.tried(None)

    def stand(self, tube: Tube) -> None:
        """Let a take stand in the line of the queue, if connections wait for its jobs."""
        if tube.take is None and tube.waiters and not self.is_paused(tube):
            tube.stop = self.runtime.event()
            tube.take = self.spawn(self._stand(tube, tube.stop))

    async def _stand(self, tube: Tube, stop: Event) -> None:
        try:
            while tube.waiters and not stop.is_set():
                await self._hand(tube, await self._take(tube, len(tube.waiters), stop))
        except WaitStopped:
            pass
        except SURVIVED as error:
            refusal(error)
            self.jobs.forget(tube.name)
            await asyncio.sleep(PAUSE_AFTER_ERROR_S)
        finally:
            tube.take = tube.stop = None
        self.stand(tube)

    async def _take(self, tube: Tube, count: int, stop: Event) -> Sequence[Task]:
        def take() -> Sequence[Task]:
            queue = self.jobs.queue(tube.name)
            return queue.take_many(self.database.blocking, min(count, limits.SERVE_MAX), None, stop=stop)

        return await self.database.hub.call(take, stop)

    async def _hand(self, tube: Tube, tasks: Sequence[Task]) -> None:
        """Give the jobs to those that wait."""
        found = self.jobs.known_jobs(tube.name, tasks)
        if found is None:
            found = await self.changed(
                lambda tr, numbers, _: self.jobs.numbered(tr, tube.name, tasks, numbers), tube.name
            )
        spare = [taken for taken in found if not self._give(tube, taken)]
        if spare:
            self.release([taken.held for taken in spare], uncounted=True)

    def _give(self, tube: Tube, taken: Taken) -> bool:
        if not tube.waiters or self.is_paused(tube):
            return False
        next(iter(tube.waiters)).give(taken)
        return True

    def release(self, helds: Iterable[Held], uncounted: bool = False) -> None:
        """Release jobs that no connection holds any more. `uncounted`: no connection has seen them."""
        release = self._undo_takes if uncounted else self.jobs.give_back
        for tube, few in groupby(sorted(helds, key=_tube), _tube):
            targets = [held.target for held in few]
            self.change(partial(_release, release, tube, targets), _ignored, tube)

    def _undo_takes(self, tr: Any, tube: str, targets: Sequence[verbs.Target]) -> None:
        self.jobs.calls(tube).parts.each(tr, targets, verbs.undo_take)

    # Work of connections.

    def change(self, verb: Callable[..., Any], done: Callable[[Any], None], *tubes: str) -> None:
        """Run a verb in a batch. `done` gets its answer, or the reply that tells of a failure."""
        self.batches.add(Verb(verb, done, tubes))

    async def changed(self, verb: Callable[..., Any], *tubes: str) -> Any:
        """As `change`, awaited. Raises: FdbQueueError for a failure, which is logged."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        self.change(verb, partial(_resolve, answer), *tubes)
        found = await answer
        if found == protocol.INTERNAL_ERROR or found == protocol.OUT_OF_MEMORY:
            raise FdbQueueError
        return found

    async def kick(self, tube: str, count: int) -> bytes:
        kicked = 0
        while True:
            left = min(count - kicked, limits.VERB_BATCH)
            more = await self.changed(partial(_kick, self.jobs, tube, left), tube)
            kicked += more
            if more < limits.VERB_BATCH:
                return b"KICKED %d\r\n" % kicked

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def connected(self, connection: Peer) -> None:
        self.connections.add(connection)
        self.connections_seen += 1

    def disconnected(self, connection: Peer) -> None:
        self.connections.discard(connection)
        if connection.waiter is not None:
            connection.waiter.drop()
        connection.used.using -= 1
        for tube in connection.watched.values():
            tube.watching -= 1
        helds, connection.held = list(connection.held.values()), {}
        self.release(helds)

    def drain(self) -> None:
        """Take no new jobs."""
        self.is_draining = True

    # Its life.

    async def run(self, listening: asyncio.Server) -> None:
        """Serve until this is cancelled. The end of the session of this process releases all jobs."""
        batches, stale = self.spawn(self.batches.run()), self.spawn(self._clear_stale())
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.gather(batches, stale)
        finally:
            listening.close()
            for connection in list(self.connections):
                connection.abort()
            for tube in self.tubes.values():
                if tube.stop is not None:
                    tube.stop.set()
            for task in list(self._tasks):
                task.cancel()

    async def _clear_stale(self) -> None:
        """Clear the rows of jobs that have ended without this server, a few at a time."""
        place = 0
        while True:
            await asyncio.sleep(STALE_LOOK_S)
            try:
                clear = partial(self.jobs.clear_stale, place, STALE_LOOKED_AT)
                place = await self.database.hub.call(clear, Unheard())
            except SURVIVED as error:
                refusal(error)


_tube = attrgetter("tube")


def _release(release: Callable[..., None], tube: str, targets: Sequence[Any], tr: Any, *_: Any) -> None:
    release(tr, tube, targets)


def _kick(jobs: Jobs, tube: str, count: int, tr: Any, *_: Any) -> int:
    return jobs.kick(tr, tube, count)


def _ignored(_: Any) -> None:
    """A failure is logged by now, and the lease ends by time."""


def _resolve(answer: "asyncio.Future[Any]", found: Any) -> None:
    if not answer.done():
        answer.set_result(found)
