"""Pages: from a request to a look at the database, to a view, to a template."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.limits import LOGIN_S
from fdbqueue.core.logger import logger
from fdbqueue.operate.dashboard.actions import QUEUE_ACTIONS, TASK_ACTIONS, Action
from fdbqueue.operate.dashboard.guard import COOKIE, Access, form_of
from fdbqueue.operate.dashboard.looks import ENDED, STATES, see_dead, see_queue, see_task
from fdbqueue.operate.dashboard.rendering import Renderer
from fdbqueue.operate.dashboard.room import DatabaseSilent, Room
from fdbqueue.operate.dashboard.streams import Sampler, Streams
from fdbqueue.operate.dashboard.texts import name_in
from fdbqueue.operate.dashboard.views import DeadView, queue_view, task_view

T = TypeVar("T")
V = TypeVar("V")

_log = logger("fdbqueue.dashboard")


class Pages:
    def __init__(
        self, room: Room, access: Access, renderer: Renderer, sampler: Sampler, streams: Streams
    ) -> None:
        self._room = room
        self._access = access
        self._renderer = renderer
        self._sampler = sampler
        self._streams = streams

    async def queues(self, request: Request) -> Response:
        sample = await self._sampler.latest()
        if sample.view is None:
            raise DatabaseSilent(sample.silence)
        return self._renderer.page(request, "queues.html", view=sample.view)

    async def queue(self, request: Request) -> Response:
        name, after = queue_of(request), request.query_params.get("after")
        state = request.query_params.get("state", "ready")
        if state not in (*STATES, ENDED):
            wanted = f"one of {', '.join((*STATES, ENDED))}"
            raise InvalidArgument(name="state", wanted=wanted, got=state)
        trend = self._sampler.history.trend(name)
        view = await self._seen(
            lambda look: queue_view(look, trend, after), see_queue, name=name, state=state, after=after
        )
        return self._page(request, "queue.html", view, QUEUE_ACTIONS)

    async def task(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        view = await self._seen(task_view, see_task, name=queue_of(request), id_=id_)
        return self._page(request, "task.html", view, TASK_ACTIONS)

    async def dead(self, request: Request) -> Response:
        given = request.query_params
        error, text, after = given.get("error"), given.get("text") or None, given.get("after")
        view = await self._seen(
            lambda look: DeadView(look, error, text, after),
            see_dead,
            name=queue_of(request),
            error=error,
            text=text,
            after=after,
        )
        return self._page(request, "dead.html", view, QUEUE_ACTIONS)

    async def events(self, request: Request) -> Response:
        if self._streams.are_full:
            return PlainTextResponse("There are too many open pages.\n", 503)
        part = request.query_params.get("queue")
        base = request.scope.get("root_path", "")
        return self._streams.answer(base, None if part is None else name_in(part))

    async def health(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def login(self, request: Request) -> Response:
        if self._access.token is None:
            return RedirectResponse(f"{self._base(request)}/", 303)
        return self._renderer.page(request, "login.html", said="")

    async def do_login(self, request: Request) -> Response:
        form, now = await form_of(request, self._access), self._room.runtime.now()
        if not self._access.is_token(form.get("token", "")):
            _log.warning("a login from %s has failed", address_of(request))
            return self._renderer.page(request, "login.html", 403, said="That is not the token.")
        _log.info("a login from %s", address_of(request))
        answer = RedirectResponse(f"{self._base(request)}/", 303)
        answer.set_cookie(
            COOKIE,
            self._access.new_cookie(self._room.runtime.random_bytes(16), now),
            max_age=int(LOGIN_S),
            path=f"{self._base(request)}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def do_logout(self, request: Request) -> Response:
        await form_of(request, self._access)
        answer = RedirectResponse(f"{self._base(request)}/login", 303)
        answer.delete_cookie(COOKIE, path=f"{self._base(request)}/", httponly=True, samesite="strict")
        return answer

    async def _seen(self, view: Callable[[T], V], see: Callable[..., T], **given: Any) -> V:
        """The view of a look. A large payload takes time to be shown, so that is done in the thread too."""
        room = self._room
        look = partial(see, database=room.database, root=room.root, now=room.runtime.now(), **given)
        return await room.look(lambda tr: view(look(tr)))

    def _page(self, request: Request, template: str, view: object, actions: Mapping[str, Action]) -> Response:
        """A page with buttons, and with the outcome of the action that has brought the browser here."""
        said, signature = request.query_params.get("done", ""), request.query_params.get("by", "")
        done = said if self._access.is_signed(said, signature) else ""
        return self._renderer.page(request, template, view=view, actions=actions, done=done)

    def _base(self, request: Request) -> str:
        return str(request.scope.get("root_path", ""))


def queue_of(request: Request) -> str:
    return name_in(request.path_params["name"])


def address_of(request: Request) -> str:
    return "an unknown address" if request.client is None else request.client.host
