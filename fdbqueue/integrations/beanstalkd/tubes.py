"""Tubes and connections as the server knows them, and the reserves that wait."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from msgspec import Struct, field

from fdbqueue.core.runtime import Event
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.jobs import Held, Taken

TIMER_MAX_S = 86_400.0
DEFAULT = "default"
"""The tube of a new connection; it is always there."""


class Tube(Struct, eq=False):
    """A tube that connections use, watch or have used. Times are those of the loop."""

    name: str
    using: int = 0
    watching: int = 0
    jobs: int = 0
    """Jobs that this server has put since it knows the tube; and so on."""
    deletes: int = 0
    pauses: int = 0
    pause_s: int = 0
    paused_until: float = 0.0
    waiters: dict["Waiter", None] = field(default_factory=dict)
    """The connections that wait for a job, in order."""
    take: "asyncio.Task[None] | None" = None
    """The take in the line of the queue."""
    stop: Event | None = None

    @property
    def is_used(self) -> bool:
        return bool(self.using or self.watching or self.pause_s or self.name == DEFAULT)


class Peer(asyncio.Protocol):
    """A connection, as the server knows it."""

    used: Tube
    watched: dict[str, Tube]

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.waiter: Waiter | None = None
        self.is_producer = self.is_worker = self.ended = self.closed = False

    @abstractmethod
    def answer(self, reply: bytes) -> None:
        """Reply to the command that waits; the next one has its turn."""

    @abstractmethod
    def answer_with(self, taken: Taken) -> None:
        """Reply to a reserve with a job."""

    @abstractmethod
    def margin_s(self) -> float:
        """The time until the last part of the lease that ends first, in which no reserve waits."""

    @abstractmethod
    def abort(self) -> None:
        """Close it at once."""


class Waiter:
    """A reserve of a connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Peer,
        timeout_s: float | None,
        stand: Callable[[Tube], None],
    ) -> None:
        """`stand` lets a take stand in the line of the queue of a tube."""
        self._loop = loop
        self._connection = connection
        self._timeout_s = timeout_s
        self._stand = stand
        self._until = None if timeout_s is None else loop.time() + timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._tubes = list(connection.watched.values())

    def tried(self, answer: Taken | bytes | None) -> None:
        """The answer of the first try: None if there is no job."""
        if isinstance(answer, Taken):
            self.give(answer)
        elif answer is not None or self._connection.closed:
            self._end(answer or b"")
        elif self._timeout_s == 0 or self._connection.ended or self._connection.margin_s() <= 0:
            self.expire()
        else:
            for tube in self._tubes:
                tube.waiters[self] = None
                self._stand(tube)
            self._wait()

    def give(self, taken: Taken) -> None:
        self._leave()
        self._connection.answer_with(taken)

    def expire(self) -> None:
        """Answer that there is no job."""
        self._end(protocol.DEADLINE_SOON if self._connection.margin_s() <= 0 else protocol.TIMED_OUT)

    def hang_up(self) -> None:
        """The client sends no more, so the reserve waits no longer; its first try goes on to its end."""
        if self._timer is not None:
            self.expire()

    def drop(self) -> None:
        """The connection has gone."""
        self._leave()

    def _end(self, reply: bytes) -> None:
        self._leave()
        self._connection.answer(reply)

    def _leave(self) -> None:
        self._connection.waiter = None
        if self._timer is not None:
            self._timer.cancel()
        for tube in self._tubes:
            tube.waiters.pop(self, None)
            if not tube.waiters and tube.stop is not None:
                tube.stop.set()

    def _wait(self) -> None:
        """Wait for the timeout, or for the end of a lease to be near, whichever is first."""
        left_s = min(
            TIMER_MAX_S,
            self._connection.margin_s(),
            TIMER_MAX_S if self._until is None else self._until - self._loop.time(),
        )
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._wait)
        else:
            self.expire()
