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
from fdbqueue.core.database import at_pace, run
from fdbqueue.core.errors import WaitStopped
from fdbqueue.core.runtime import Event
from fdbqueue.core.task import Task
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd.batches import Batches, Item, Kind, refusal
from fdbqueue.integrations.beanstalkd.jobs import Attempt, Held, Jobs, taken_of
from fdbqueue.integrations.beanstalkd.tubes import DEFAULT, TIMER_MAX_S, Peer, Tube, Waiter

TUBES_MAX = 10_000
"""Tubes that connections may use and watch at a time."""
PAUSE_AFTER_ERROR_S = 1.0
STALE_LOOK_S = 5.0
STALE_LOOKED_AT = 200
_tube = attrgetter("tube")


class Server:
    """A server of one database on the running loop."""

    def __init__(self, database: Database, root: Any, max_job_size: int) -> None:
        self.database = database
        self.max_job_size = max_job_size
        self.loop = asyncio.get_running_loop()
        self.runtime = database.blocking.runtime
        self.now = self.runtime.now
        self.jobs = Jobs(database.blocking, root)
        self.batches = Batches(database, self.jobs)
        self.tubes = {DEFAULT: Tube(DEFAULT)}
        self.connections: set[Peer] = set()
        self.commands: Counter[str] = Counter()
        self.connections_seen = self.timeouts = self.total_jobs = 0
        self.is_draining = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # Tubes.

    def enter(self, name: str) -> Tube | None:
        """The tube; None if too many are used."""
        tube = self.tubes.get(name)
        if tube is None:
            if len(self.tubes) >= TUBES_MAX:
                self.tubes = {name: tube for name, tube in self.tubes.items() if tube.is_used}
            if len(self.tubes) >= TUBES_MAX:
                return None
            tube = self.tubes[name] = Tube(name)
        return tube

    def is_paused(self, tube: Tube) -> bool:
        return tube.paused_until > self.loop.time()

    def pause(self, tube: Tube, seconds: int) -> None:
        tube.pauses += 1
        tube.pause_s, tube.paused_until = seconds, self.loop.time() + seconds
        if tube.stop is not None:
            tube.stop.set()
        self._unpause(tube)

    def _unpause(self, tube: Tube) -> None:
        """Let jobs be given again if the pause is over; if not, look again later."""
        if tube.timer is not None:
            tube.timer.cancel()
        left_s = tube.paused_until - self.loop.time()
        if left_s > 0:
            tube.timer = self.loop.call_later(min(left_s, TIMER_MAX_S), self._unpause, tube)
            return
        tube.timer, tube.pause_s = None, 0
        self.stand(tube)

    # Reserves.

    def reserve(self, peer: Peer, timeout_s: float) -> None:
        peer.waiter = waiter = Waiter(peer, timeout_s, self.stand)
        tubes = sorted(name for name, tube in peer.watched.items() if not self.is_paused(tube))
        if tubes:
            self.batches.add(Item(Kind.TAKE, tuple(tubes), None, waiter.tried))
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
                tasks = await self._take(tube, len(tube.waiters), stop)
                await asyncio.gather(*(self._hand(tube, task) for task in tasks))
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

    async def _hand(self, tube: Tube, task: Task) -> None:
        """Give a job to the reserve that waits longest; back to the queue, if none waits any more."""
        taken = self.jobs.known(tube.name, task) or await self.answered(Kind.NUMBER, (tube.name,), task)
        if isinstance(taken, bytes):
            self.release([taken_of(tube.name, task, 0).held], seen=False)
            await asyncio.sleep(PAUSE_AFTER_ERROR_S)
        elif tube.waiters and not self.is_paused(tube):
            next(iter(tube.waiters)).end(taken)
        else:
            self.release([taken.held], seen=False)

    def release(self, helds: Iterable[Held], seen: bool) -> None:
        """Release jobs that no connection holds any more. `seen`: a client has been told of them."""
        for tube, few in groupby(sorted(helds, key=_tube), _tube):
            targets = [held.target for held in few]
            for at in range(0, len(targets), limits.VERB_BATCH):
                some = targets[at : at + limits.VERB_BATCH]
                give_back = partial(self.jobs.give_back, tube=tube, targets=some, seen=seen)
                self._give_back(tube, give_back, PAUSE_AFTER_ERROR_S)

    def _give_back(self, tube: str, give_back: Callable[[Attempt], None], pause_s: float) -> None:
        """Run it in a batch, and again later if it fails: these leases may last for years."""

        def done(answer: bytes | None) -> None:
            if answer is not None:
                self.loop.call_later(pause_s, self._give_back, tube, give_back, min(2 * pause_s, TIMER_MAX_S))

        self.batches.add(Item(Kind.CHANGE, (tube,), give_back, done))

    # Work of connections.

    async def answered(self, kind: Kind, tubes: tuple[str, ...], argument: Any) -> Any:
        """The answer of a command in a batch, or the reply that tells of its failure."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        self.batches.add(Item(kind, tubes, argument, partial(_resolve, answer)))
        return await answer

    async def kick(self, tube: str, count: int) -> bytes:
        kicked, state = 0, ""
        while True:
            verb = partial(self.jobs.kick, tube=tube, count=count - kicked, state=state)
            answer = await self.answered(Kind.CHANGE, (tube,), verb)
            if isinstance(answer, bytes):
                return answer
            more, state = answer
            kicked += more
            if more < limits.VERB_BATCH:
                return b"KICKED %d\r\n" % kicked

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def disconnected(self, peer: Peer) -> None:
        self.connections.discard(peer)
        if peer.waiter is not None:
            peer.waiter.leave()
        peer.used.using -= 1
        for tube in peer.watched.values():
            tube.watching -= 1
        self.release(peer.held.values(), seen=True)
        peer.held = {}

    # Its life.

    def drain(self) -> None:
        """Take no new jobs."""
        self.is_draining = True

    async def run(self) -> None:
        """Serve until this is cancelled. The end of the session of this process releases all jobs."""
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.gather(self.batches.run(), self._clear_stale())
        finally:
            for peer in list(self.connections):
                peer.transport.abort()
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
                place = await self.database.hub.call(partial(self._clear_some, place), Unheard())
            except SURVIVED as error:
                refusal(error)

    def _clear_some(self, place: int) -> int:
        database = at_pace(self.database.blocking, "upkeep")
        return run(database, lambda tr: self.jobs.clear_stale(tr, place, STALE_LOOKED_AT))


def _resolve(answer: "asyncio.Future[Any]", found: Any) -> None:
    if not answer.done():
        answer.set_result(found)
