"""Sampling: one look at all queues, shared by all pages and streams of a dashboard."""

from dataclasses import dataclass

import anyio

from fdbqueue.core import limits
from fdbqueue.operate.dashboard.history import History
from fdbqueue.operate.dashboard.room import DatabaseSilent, Room
from fdbqueue.operate.dashboard.views import QueuesView, queues_view
from fdbqueue.operate.overview.overview import Overview


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: its view, or the reason why there is none."""

    number: int
    at_s: float
    """The time at which the look began."""
    view: QueuesView | None
    silence: str = ""


class Sampler:
    """Looks at the queues when the last look is older than limits.DASHBOARD_LOOK_EVERY_S."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._overview = Overview(keys=0, root=room.root)
        self.history = History()
        self._lock = anyio.Lock()
        self._last: Sample | None = None
        self._expired_s = float("-inf")

    async def latest(self, at_most_s: float = limits.DASHBOARD_LOOK_EVERY_S) -> Sample:
        """A sample of that age at most. Calls that come during a look wait for it, and share it."""
        async with self._lock:
            last, now_s = self._last, self._room.runtime.monotonic()
            if last is None or last.at_s <= self._expired_s or now_s - last.at_s >= at_most_s:
                last = self._last = await self._look(0 if last is None else last.number + 1)
            return last

    def expire(self) -> None:
        """Let the next call look again: an action has changed the queues. A look that is under way may have
        begun before it.
        """
        self._expired_s = self._room.runtime.monotonic()

    async def _look(self, number: int) -> Sample:
        at_s = self._room.runtime.monotonic()
        try:
            figures = await self._room.look(self._overview.figures)
        except DatabaseSilent as reason:
            return Sample(number, at_s, None, str(reason))
        self.history.add(figures, at_s)
        return Sample(number, at_s, queues_view(figures, self.history.trend))
