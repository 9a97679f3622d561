"""The server: tubes, and the takes that stand in the lines of their queues.

A reserve is first tried in a batch. If there is no job, it waits in each tube that its connection watches.
For each such tube, one take of this process stands in the waiting line of the queue, and asks for as many
jobs as reserves wait. A job that comes after its reserve has got another one goes back at once, and no
attempt is counted.

A paused tube gives no jobs to the connections of this server; the queue itself is not paused.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from fdbqueue.aio.database import Database
from fdbqueue.aio.hub import Unheard
from fdbqueue.core import limits
from fdbqueue.core.database import at_pace, run
from fdbqueue.core.errors import PayloadTooLarge, QueueFull, StorageFull, WaitStopped
from fdbqueue.core.logger import logger, traceback_of
from fdbqueue.core.runtime import Event
from fdbqueue.core.task import Task
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.batches import Batches, Kind
from fdbqueue.integrations.beanstalkd.jobs import Held, Jobs, Taken, taken_of
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.verbs import Target

DEFAULT = "default"
"""The tube of a new connection; it is always there."""
TUBES_MAX = 10_000
"""Tubes that connections may use and watch at a time."""
PAUSE_AFTER_ERROR_S, PAUSE_AFTER_ERRORS_S = 1.0, 3_600.0
STALE_LOOK_S = 5.0
STALE_LOOKED_AT = 200
Waiter = asyncio.Future[Taken | None]
"""A reserve that waits; None tells it to wait no longer."""
_log = logger(__name__)
_tube = attrgetter("tube")


class Tube(Struct, eq=False):
    """A tube that connections use, watch or have used."""

    name: str
    using: int = 0
    watching: int = 0
    jobs: int = 0
    """Jobs that this server has put since it knows the tube; and so on."""
    deletes: int = 0
    pauses: int = 0
    pause_s: int = 0
    unpause: asyncio.TimerHandle | None = None
    waiters: dict[Waiter, None] = field(default_factory=dict)
    """In order."""
    stop: Event | None = None
    """That of the take in the line of the queue."""

    @property
    def is_paused(self) -> bool:
        return self.pause_s > 0

    @property
    def is_used(self) -> bool:
        return bool(self.using or self.watching or self.pause_s or self.name == DEFAULT)


class Server:
    """A server of one database on the running loop."""

    def __init__(self, database: Database, root: Any, max_job_size: int) -> None:
        self.database = database
        self.max_job_size = max_job_size
        self.loop = asyncio.get_running_loop()
        self.runtime = database.blocking.runtime
        self.jobs = Jobs(database.blocking, root)
        self.batches = Batches(self.jobs)
        self.ask = self.batches.ask
        self.overview = Overview(queues_only=True, root=self.jobs.root)
        self.id, self.started = self.runtime.random_bytes(8).hex(), self.loop.time()
        self.tubes = {DEFAULT: Tube(DEFAULT)}
        self.connections: set[Any] = set()
        self.commands: Counter[str] = Counter()
        self.connections_seen = self.timeouts = self.total_jobs = 0
        self.is_draining = False
        self._tasks: set[asyncio.Task[None]] = set()

    # Tubes.

    def enter(self, name: str) -> Tube:
        """The tube. Raises: MemoryError if too many are used."""
        tube = self.tubes.get(name)
        if tube is None:
            if len(self.tubes) >= TUBES_MAX:
                self.tubes = {name: tube for name, tube in self.tubes.items() if tube.is_used}
            if len(self.tubes) >= TUBES_MAX:
                raise MemoryError
            tube = self.tubes[name] = Tube(name)
        return tube

    def pause(self, tube: Tube, seconds: int) -> None:
        tube.pauses += 1
        tube.pause_s = seconds
        if tube.unpause is not None:
            tube.unpause.cancel()
        tube.unpause = self.loop.call_later(seconds, self._unpause, tube)
        if tube.stop is not None:
            tube.stop.set()

    def _unpause(self, tube: Tube) -> None:
        tube.unpause, tube.pause_s = None, 0
        self._stand(tube)

    # Reserves that wait.

    def wait(self, tube: Tube, waiter: Waiter) -> None:
        tube.waiters[waiter] = None
        self._stand(tube)

    def leave(self, tube: Tube, waiter: Waiter) -> None:
        tube.waiters.pop(waiter, None)
        if not tube.waiters and tube.stop is not None:
            tube.stop.set()

    def _stand(self, tube: Tube) -> None:
        """Let a take stand in the line of the queue, if reserves wait for its jobs."""
        if tube.stop is None and tube.waiters and not tube.is_paused:
            tube.stop = self.runtime.event()
            self.spawn(self._take(tube, tube.stop))

    async def _take(self, tube: Tube, stop: Event) -> None:
        try:
            while tube.waiters and not stop.is_set():
                count = min(len(tube.waiters), limits.SERVE_MAX)
                take = partial(self.jobs.wait, tube.name, count, stop)
                tasks = await self.database.hub.call(take, stop)
                await asyncio.gather(*(self._hand(tube, task) for task in tasks))
        except WaitStopped:
            pass
        except SURVIVED as error:
            refusal(error)
            self.jobs.forget(tube.name)
            await asyncio.sleep(PAUSE_AFTER_ERROR_S)
        finally:
            tube.stop = None
        self._stand(tube)

    async def _hand(self, tube: Tube, task: Task) -> None:
        """Give a job to the reserve that waits longest; back to the queue, if none waits any more."""
        try:
            taken = await self.ask(Kind.NUMBER, task, tube.name)
        except SURVIVED:
            self.release([taken_of(tube.name, task, 0).held], seen=False)
            raise
        while tube.waiters and not tube.is_paused:
            waiter = next(iter(tube.waiters))
            del tube.waiters[waiter]
            if not waiter.done():
                waiter.set_result(taken)
                return
        self.release([taken.held], seen=False)

    def release(self, helds: Iterable[Held], seen: bool) -> None:
        """Release jobs that no connection holds any more. `seen`: a client has been told of them."""
        for tube, few in groupby(sorted(helds, key=_tube), _tube):
            targets = [held.target for held in few]
            for at in range(0, len(targets), limits.VERB_BATCH):
                self.spawn(self._give_back(tube, targets[at : at + limits.VERB_BATCH], seen))

    async def _give_back(self, tube: str, targets: list[Target], seen: bool) -> None:
        """Try until it is done: these leases may last for years."""
        give_back = partial(self.jobs.give_back, tube=tube, targets=targets, seen=seen)
        pause_s = PAUSE_AFTER_ERROR_S
        while True:
            try:
                await self.ask(Kind.CHANGE, give_back, tube)
                return
            except SURVIVED as error:
                refusal(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_AFTER_ERRORS_S)

    # Its life.

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Take no new jobs."""
        self.is_draining = True

    async def run(self) -> None:
        """Serve until this is cancelled. The end of the session of this process releases all jobs."""
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.gather(self.batches.run(self.database.hub), self._clear_stale())
        finally:
            for tube in self.tubes.values():
                if tube.stop is not None:
                    tube.stop.set()
            for task in list(self._tasks):
                task.cancel()

    async def _clear_stale(self) -> None:
        """Clear the rows of jobs that have ended without this server, a few at a time."""
        place, database = 0, at_pace(self.database.blocking, "upkeep")
        while True:
            await asyncio.sleep(STALE_LOOK_S)
            clear = partial(self.jobs.clear_stale, after=place, count=STALE_LOOKED_AT)
            try:
                place = await self.database.hub.call(partial(run, database, clear), Unheard())
            except SURVIVED as error:
                refusal(error)


def refusal(error: BaseException) -> bytes:
    """The reply that tells of a failure, which is logged if it is not about room."""
    if isinstance(error, QueueFull | StorageFull | PayloadTooLarge | MemoryError):
        return protocol.OUT_OF_MEMORY
    _log.error("a command has failed: %s", traceback_of(error, error.__traceback__))
    return b"INTERNAL_ERROR"
