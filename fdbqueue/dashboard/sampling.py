"""Sampling: one look at all queues, shared by all pages and streams of a dashboard."""

from dataclasses import dataclass, replace

import anyio

from fdbqueue import limits
from fdbqueue.dashboard.history import History
from fdbqueue.dashboard.room import DatabaseSilent, Room
from fdbqueue.dashboard.views import QueuesView, queues_view
from fdbqueue.overview.overview import Overview


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: its view, or the reason why there is none."""

    number: int
    at_s: float
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

    async def latest(self, at_most_s: float = limits.DASHBOARD_LOOK_EVERY_S) -> Sample:
        """A sample of that age at most. Calls that come during a look wait for it, and share it."""
        async with self._lock:
            now_s = self._room.runtime.monotonic()
            if self._last is None or now_s - self._last.at_s >= at_most_s:
                self._last = await self._look(0 if self._last is None else self._last.number + 1)
            return self._last

    def expire(self) -> None:
        """Let the next call look again: an action has changed the queues."""
        if self._last is not None:
            self._last = replace(self._last, at_s=float("-inf"))

    async def _look(self, number: int) -> Sample:
        monotonic = self._room.runtime.monotonic
        try:
            figures = await self._room.look(self._overview.figures)
        except DatabaseSilent as reason:
            return Sample(number, monotonic(), None, str(reason))
        at_s = monotonic()
        self.history.add(figures, at_s)
        return Sample(number, at_s, queues_view(figures, self.history.trend))
