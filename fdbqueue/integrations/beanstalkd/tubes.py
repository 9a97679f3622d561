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
    timer: asyncio.TimerHandle | None = None
    """That of the end of its pause."""
    waiters: dict["Waiter", None] = field(default_factory=dict)
    """The reserves that wait for a job, in order."""
    take: "asyncio.Task[None] | None" = None
    """The take in the line of the queue."""
    stop: Event | None = None

    @property
    def is_used(self) -> bool:
        return bool(self.using or self.watching or self.pause_s or self.name == DEFAULT)


class Peer(asyncio.Protocol):
    """A connection, as the server knows it."""

    transport: asyncio.Transport
    used: Tube
    watched: dict[str, Tube]

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.waiter: Waiter | None = None
        self.is_producer = self.is_worker = self.ended = self.closed = False

    @abstractmethod
    def reserved(self, answer: Taken | bytes) -> None:
        """Reply to a reserve that has waited: with a job, or that there is none."""

    @abstractmethod
    def margin_s(self) -> float:
        """The time until the last part of the lease that ends first, in which no reserve waits."""


class Waiter:
    """A reserve of a connection. `stand` lets a take stand in the line of the queue of a tube."""

    def __init__(self, peer: Peer, timeout_s: float, stand: Callable[[Tube], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._stand = stand
        self._until = self._loop.time() + timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._tubes = list(peer.watched.values())

    def tried(self, answer: Taken | bytes | None) -> None:
        """The answer of the first try: None if there is no job."""
        if answer is not None:
            self.end(answer)
        elif self._peer.ended or self._peer.closed:
            self.expire()
        else:
            self._wait()
            if self._timer is not None:
                for tube in self._tubes:
                    tube.waiters[self] = None
                    self._stand(tube)

    def _wait(self) -> None:
        """Wait for the timeout, or for the end of a lease to be near, whichever is first."""
        left_s = min(TIMER_MAX_S, self._peer.margin_s(), self._until - self._loop.time())
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._wait)
        else:
            self.expire()

    def expire(self) -> None:
        """Answer that there is no job."""
        self.end(protocol.DEADLINE_SOON if self._peer.margin_s() <= 0 else protocol.TIMED_OUT)

    def hang_up(self) -> None:
        """The client sends no more, so the reserve waits no longer; its first try goes on to its end."""
        if self._timer is not None:
            self.expire()

    def end(self, answer: Taken | bytes) -> None:
        self.leave()
        self._peer.reserved(answer)

    def leave(self) -> None:
        self._peer.waiter = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for tube in self._tubes:
            tube.waiters.pop(self, None)
            if not tube.waiters and tube.stop is not None:
                tube.stop.set()
