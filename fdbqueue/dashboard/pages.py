"""Pages: from a request to a look at the database, to a view, to a template."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from fdbqueue.dashboard.access import COOKIE, Access
from fdbqueue.dashboard.actions import QUEUE_ACTIONS, TASK_ACTIONS
from fdbqueue.dashboard.dead_views import dead_view
from fdbqueue.dashboard.forms import form_of
from fdbqueue.dashboard.looks import ENDED, STATES, see_dead, see_queue, see_task
from fdbqueue.dashboard.rendering import Renderer
from fdbqueue.dashboard.room import DatabaseSilent, Room
from fdbqueue.dashboard.sampling import Sampler
from fdbqueue.dashboard.streams import Streams
from fdbqueue.dashboard.task_views import task_view
from fdbqueue.dashboard.texts import name_in
from fdbqueue.dashboard.views import queue_view
from fdbqueue.errors import InvalidArgument
from fdbqueue.limits import LOGIN_S
from fdbqueue.logger import logger

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
        look = await self._look(see_queue, name=name, state=state, after=after)
        view = queue_view(look, self._sampler.history.trend(name), after)
        return self._renderer.page(
            request, "queue.html", view=view, actions=QUEUE_ACTIONS, done=done_in(request)
        )

    async def task(self, request: Request) -> Response:
        look = await self._look(see_task, name=queue_of(request), id_=request.path_params["id"])
        return self._renderer.page(
            request, "task.html", view=task_view(look), actions=TASK_ACTIONS, done=done_in(request)
        )

    async def dead(self, request: Request) -> Response:
        given = request.query_params
        error, text, after = given.get("error"), given.get("text") or None, given.get("after")
        look = await self._look(see_dead, name=queue_of(request), error=error, text=text, after=after)
        view = dead_view(look, error, text, after)
        return self._renderer.page(
            request, "dead.html", view=view, actions=QUEUE_ACTIONS, done=done_in(request)
        )

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

    async def _look(self, see: Any, **given: Any) -> Any:
        now = self._room.runtime.now()
        return await self._room.look(partial(see, root=self._room.root, now=now, **given))

    def _base(self, request: Request) -> str:
        return str(request.scope.get("root_path", ""))


def queue_of(request: Request) -> str:
    return name_in(request.path_params["name"])


def address_of(request: Request) -> str:
    """The address of the client, for the log."""
    return "an unknown address" if request.client is None else request.client.host


def done_in(request: Request) -> str:
    """The action that has brought the browser here: a name, and nothing that a link could invent."""
    done = request.query_params.get("done", "")
    known = {action.name: action.label for action in (*QUEUE_ACTIONS.values(), *TASK_ACTIONS.values())}
    return known.get(done, "")
