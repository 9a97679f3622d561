"""Failures: each error as a page with a sentence."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.core.errors import InvalidArgument, QueueKindMismatch, QueueNotFound, TaskNotFound
from fdbqueue.core.logger import logger
from fdbqueue.operate.dashboard.forms import FormRefused
from fdbqueue.operate.dashboard.rendering import Renderer
from fdbqueue.operate.dashboard.room import Room

_log = logger("fdbqueue.dashboard")


class Failures:
    """Each error as a page with a sentence."""

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
