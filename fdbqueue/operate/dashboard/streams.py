"""Streams: server-sent events with the parts of a page that change, one look at the database for all.

event: part     data: {"part": "queues", "html": "..."}   the new content of that part
event: silence  data: {"text": "..."}                     the database does not answer
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
import msgspec
from starlette.responses import StreamingResponse

from fdbqueue.core import limits
from fdbqueue.operate.dashboard.looks import History
from fdbqueue.operate.dashboard.rendering import Renderer
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
        """An action has changed the queues: look again. A look that is under way may be older."""
        self._expired_s = self._room.runtime.monotonic()

    async def _look(self, number: int) -> Sample:
        at_s = self._room.runtime.monotonic()
        try:
            figures = await self._room.look(self._overview.figures)
        except DatabaseSilent as reason:
            return Sample(number, at_s, None, str(reason))
        self.history.add(figures, at_s)
        return Sample(number, at_s, queues_view(figures, self.history.trend))


Part = Callable[[Sample], str]


class Streams:
    def __init__(self, sampler: Sampler, renderer: Renderer) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._closing = asyncio.Event()
        self._open = 0
        self._rendered: dict[tuple[str, str], tuple[int, bytes]] = {}

    @property
    def are_full(self) -> bool:
        return self._open >= limits.STREAMS_MAX

    def close(self) -> None:
        """End all streams. Their browsers connect again, to the next server."""
        self._closing.set()

    def answer(self, base: str, queue: str | None) -> StreamingResponse:
        headers = {"X-Accel-Buffering": "no"}  # nginx would keep the events back
        return StreamingResponse(self._events(base, queue), media_type="text/event-stream", headers=headers)

    async def _events(self, base: str, queue: str | None) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            async with asyncio.timeout(limits.STREAM_S):
                yield b"retry: 2000\n\n"
                while not self._closing.is_set():
                    sample = await self._sampler.latest()
                    yield self._event(sample, base, queue)
                    await self._pause()
        except TimeoutError:
            return
        finally:
            self._open -= 1

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._closing.wait(), limits.DASHBOARD_LOOK_EVERY_S)
        except TimeoutError:
            return

    def _event(self, sample: Sample, base: str, queue: str | None) -> bytes:
        """The event of a sample, which is rendered once for all its streams."""
        kind = (base, "" if queue is None else f"/{queue}")
        number, event = self._rendered.get(kind, (-1, b""))
        if number != sample.number:
            event = self._made(sample, base, queue)
            if len(self._rendered) > limits.STREAMS_MAX:
                self._rendered.clear()
            self._rendered[kind] = sample.number, event
        return event

    def _made(self, sample: Sample, base: str, queue: str | None) -> bytes:
        view = sample.view
        if view is None:
            return event_of("silence", {"text": f"The database does not answer: {sample.silence}"})
        if queue is None:
            html = self._renderer.text("_queues.html", view=view, base=base)
            return event_of("part", {"part": "queues", "html": html})
        row = next((row for row in view.rows if row.queue.name == queue), None)
        if row is None:
            is_gone = (
                "This queue is gone." if view.figures.is_whole else "This queue is not among the first ones."
            )
            return event_of("silence", {"text": is_gone})
        return event_of(
            "part", {"part": "figures", "html": self._renderer.text("_figures.html", row=row, base=base)}
        )


def event_of(name: str, data: dict[str, str]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
