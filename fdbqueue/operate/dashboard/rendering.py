"""Rendering: templates to pages, and errors to pages with a sentence. All that is shown is escaped.

Streams are server-sent events with the parts of a page that change, one look at the database for all:

event: part     data: {"part": "queues", "html": "..."}   the new content of that part
event: silence  data: {"text": "..."}                     the database does not answer
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import anyio
import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, QueueKindMismatch, QueueNotFound, TaskNotFound
from fdbqueue.core.logger import logger
from fdbqueue.core.version import __version__
from fdbqueue.operate.dashboard.guard import COOKIE, Access, DatabaseSilent, FormRefused, Room
from fdbqueue.operate.dashboard.looks import CHART_HEIGHT, CHART_WIDTH, History
from fdbqueue.operate.dashboard.roles import ACT, Roles
from fdbqueue.operate.dashboard.views import (
    QueuesView,
    cell,
    class_name,
    key,
    lines,
    moment,
    number,
    one_line,
    queues_view,
    segment,
    short,
    span,
)
from fdbqueue.operate.overview import Overview
from fdbqueue.operate.verify.values import command

THEME_COOKIE = "fdbqueue_theme"


@dataclass(frozen=True, slots=True)
class Shell:
    """The part of a page that does not depend on its view."""

    base: str
    """The path under which the dashboard is mounted; empty for the root of its server."""
    write: bool
    mode: str
    """The actions that the reader may take, in a few words."""
    csrf: str
    theme: str
    """"light" or "dark", as the reader has chosen; empty for the theme of the system."""
    place: str
    """The database, in a few words."""
    is_signed_in: bool
    """True if there is a login to leave."""
    version: str = __version__


@cache
def environment() -> Environment:
    """The templates. They are compiled once in a process."""
    made = Environment(
        loader=PackageLoader("fdbqueue.operate.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"span": span, "number": number, "moment": moment, "segment": segment, "short": short}
    made.filters |= {"one_line": one_line, "lines": lines, "cell": cell, "key": key, "class_name": class_name}
    made.globals |= {"chart_width": CHART_WIDTH, "chart_height": CHART_HEIGHT, "command": command}
    return made


def theme_in(request: Request) -> str:
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in ("light", "dark") else ""


class Renderer:
    def __init__(self, access: Access, roles: Roles, place: str = "") -> None:
        self._access = access
        self._roles = roles
        self._place = place
        self._templates = environment()

    def shell(self, request: Request, queue: str | None = None) -> Shell:
        """The shell of a page, with the buttons of `queue`."""
        cookie = request.cookies.get(COOKIE, "")
        has_login = self._access.token is not None and bool(cookie)
        return Shell(
            request.scope.get("root_path", ""),
            self._roles.write if queue is None else self._roles.may(request, ACT, queue),
            self._roles.told(request, queue),
            self._access.csrf(cookie),
            theme_in(request),
            self._place,
            has_login,
        )

    def page(
        self, request: Request, template: str, status: int = 200, of: str | None = None, **values: Any
    ) -> HTMLResponse:
        """A page, with the buttons of the queue `of`."""
        return HTMLResponse(self.text(template, shell=self.shell(request, of), **values), status)

    def text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)


_log = logger("fdbqueue.dashboard")


def refusal_of(error: Exception) -> tuple[int, str]:
    """The status and the sentence of the page that an error gets."""
    match error:
        case HTTPException():
            said = {404: "There is no such page.", 405: "This page does not take that method."}
            return error.status_code, said.get(error.status_code, error.detail)
        case FormRefused():
            return error.status, str(error)
        case DatabaseSilent():
            return 503, f"The database does not answer: {error}"
        case QueueNotFound() | TaskNotFound() | QueueKindMismatch():
            return 404, str(error)
        case InvalidArgument():
            return 400, str(error)
    return 409, str(error)


class Failures:
    def __init__(self, room: Room, renderer: Renderer) -> None:
        self._room = room
        self._renderer = renderer

    def _page(self, request: Request, status: int, said: str) -> Response:
        return self._renderer.page(request, "error.html", status, code=status, said=said)

    async def refused(self, request: Request, error: Exception) -> Response:
        answer = self._page(request, *refusal_of(error))
        if isinstance(error, HTTPException):
            answer.headers.update(error.headers or {})
        return answer

    def failed(self, request: Request, error: Exception) -> Response:
        self._room.troubles.met(_log, f"the page {request.url.path} has failed", error)
        return self._page(request, 500, "This page has failed; the log of the dashboard has the reason.")


class Net:
    """The middleware that answers with a page when an error has no handler."""

    def __init__(self, app: ASGIApp, failures: Failures) -> None:
        self._app = app
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http" or has_begun:
                raise
            await self._failures.failed(Request(scope), error)(scope, receive, send)


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
    def __init__(self, sampler: Sampler, renderer: Renderer, roles: Roles) -> None:
        self._sampler = sampler
        self._roles = roles
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

    def answer(self, request: Request, queue: str | None) -> StreamingResponse:
        headers = {"X-Accel-Buffering": "no"}  # nginx would keep the events back
        return StreamingResponse(
            self._events(request, queue), media_type="text/event-stream", headers=headers
        )

    async def _events(self, request: Request, queue: str | None) -> AsyncIterator[bytes]:
        self._open += 1
        base = str(request.scope.get("root_path", ""))
        try:
            async with asyncio.timeout(limits.STREAM_S):
                yield b"retry: 2000\n\n"
                while not self._closing.is_set():
                    sample = await self._sampler.latest()
                    if self._roles.authorize is None:
                        yield self._event(sample, base, queue)
                    else:
                        yield self._made(self._of(request, sample), base, queue)
                    await self._pause()
        except TimeoutError:
            return
        finally:
            self._open -= 1

    def _of(self, request: Request, sample: Sample) -> Sample:
        """The sample with the queues that the request may look at now."""
        if sample.view is None:
            return sample
        return replace(sample, view=self._roles.view(request, sample.view, self._sampler.history))

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
            said = "is gone" if view.figures.is_whole else "is not among the first ones"
            return event_of("silence", {"text": f"This queue {said}."})
        html = self._renderer.text("_figures.html", row=row, base=base)
        return event_of("part", {"part": "figures", "html": html})


def event_of(name: str, data: dict[str, str]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
