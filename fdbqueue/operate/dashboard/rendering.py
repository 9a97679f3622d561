"""Rendering: templates to pages, and errors to pages with a sentence. All that is shown is escaped."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.core.errors import InvalidArgument, QueueKindMismatch, QueueNotFound, TaskNotFound
from fdbqueue.core.logger import logger
from fdbqueue.core.version import __version__
from fdbqueue.operate.dashboard.findings import command
from fdbqueue.operate.dashboard.guard import COOKIE, Access, FormRefused
from fdbqueue.operate.dashboard.looks import CHART_HEIGHT, CHART_WIDTH
from fdbqueue.operate.dashboard.room import Room
from fdbqueue.operate.dashboard.texts import (
    cell,
    class_name,
    key,
    lines,
    moment,
    number,
    one_line,
    segment,
    short,
    span,
)

THEME_COOKIE = "fdbqueue_theme"


@dataclass(frozen=True, slots=True)
class Shell:
    """The part of a page that does not depend on its view."""

    base: str
    """The path under which the dashboard is mounted; empty for the root of its server."""
    write: bool
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
    def __init__(self, access: Access, place: str = "") -> None:
        self._access = access
        self._place = place
        self._templates = environment()

    def shell(self, request: Request) -> Shell:
        cookie = request.cookies.get(COOKIE, "")
        has_login = self._access.token is not None and bool(cookie)
        return Shell(
            request.scope.get("root_path", ""),
            self._access.write,
            self._access.csrf(cookie),
            theme_in(request),
            self._place,
            has_login,
        )

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.text(template, shell=self.shell(request), **values), status)

    def text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)


_log = logger("fdbqueue.dashboard")


class Failures:
    def __init__(self, room: Room, renderer: Renderer) -> None:
        self._room = room
        self._renderer = renderer

    def _page(self, request: Request, status: int, said: str) -> Response:
        return self._renderer.page(request, "error.html", status, code=status, said=said)

    async def http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = {404: "There is no such page.", 405: "This page does not take that method."}
        answer = self._page(request, error.status_code, said.get(error.status_code, error.detail))
        answer.headers.update(error.headers or {})
        return answer

    async def refused_form(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, FormRefused)
        return self._page(request, error.status, str(error))

    async def refused(self, request: Request, error: Exception) -> Response:
        if isinstance(error, QueueNotFound | TaskNotFound | QueueKindMismatch):
            return self._page(request, 404, str(error))
        return self._page(request, 400 if isinstance(error, InvalidArgument) else 409, str(error))

    async def silent(self, request: Request, error: Exception) -> Response:
        return self._page(request, 503, f"The database does not answer: {error}")

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
