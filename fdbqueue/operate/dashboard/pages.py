"""Pages: from a request to a look at the database, to a view, to a template.

Posting: from a form to a confirmation, to an action, to the page that shows its outcome. Without `sure`, a
form gets the page that asks. So every action has its confirmation, also without a script.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError, InvalidArgument
from fdbqueue.core.limits import LOGIN_S
from fdbqueue.core.logger import logger
from fdbqueue.core.visible import shown
from fdbqueue.operate.dashboard.actions import QUEUE_ACTIONS, TASK_ACTIONS, Action, Target
from fdbqueue.operate.dashboard.guard import COOKIE, Access, DatabaseSilent, FormRefused, Room, form_of
from fdbqueue.operate.dashboard.looks import ENDED, STATES, see_dead, see_queue, see_task
from fdbqueue.operate.dashboard.rendering import Renderer, Sampler, Streams
from fdbqueue.operate.dashboard.views import DeadView, name_in, queue_view, segment, task_view
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.redrive import RedriveState, RedriveStep

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


class Drivers:
    """At most one task of the event loop for each redrive that this dashboard has begun. A redrive is stored:
    `fdbqueue redrive run` goes on with it after the end of this process.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, queue: str) -> None:
        running = self._running.get(queue)
        if running is None or running.done():
            self._running[queue] = asyncio.get_running_loop().create_task(self._drive(queue))

    async def stop(self) -> None:
        """End all drivers. The steps that are under way are finished."""
        running, self._running = list(self._running.values()), {}
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _drive(self, queue: str) -> None:
        try:
            while True:
                try:
                    step = await self._room.call(partial(self._step, queue))
                except DatabaseSilent as reason:
                    _log.warning("the redrive of %s waits: %s", queue, reason)
                    await asyncio.sleep(limits.LOOK_TIMEOUT_S)
                    continue
                if step.redrive.state != RedriveState.RUNNING:
                    _log.info(
                        "the redrive of %s is %s: %d moved", queue, step.redrive.state, step.redrive.moved
                    )
                    return
                await asyncio.sleep(min(step.wait_s, limits.REDRIVE_LOOK_S))
        except FdbQueueError as error:
            _log.warning("the redrive of %s has ended here: %s", queue, error)

    def _step(self, queue: str) -> RedriveStep:
        database = self._room.database
        return DeadLetters.open(database, queue, root=self._room.root).step_redrive(database)


NO_ACTION = "There is no such action."
READ_ONLY = "This dashboard is read-only: `fdbqueue dashboard --write` changes queues."


class Posting:
    def __init__(
        self, room: Room, access: Access, renderer: Renderer, drivers: Drivers, sampler: Sampler
    ) -> None:
        self._room = room
        self._access = access
        self._renderer = renderer
        self._drivers = drivers
        self._sampler = sampler

    async def queue(self, request: Request) -> Response:
        target = Target(self._room.database, self._room.root, queue_of(request))
        return await self._post(request, target, QUEUE_ACTIONS)

    async def task(self, request: Request) -> Response:
        target = Target(self._room.database, self._room.root, queue_of(request), request.path_params["id"])
        return await self._post(request, target, TASK_ACTIONS)

    async def _post(self, request: Request, target: Target, actions: Mapping[str, Action]) -> Response:
        form = dict(await form_of(request, self._access))
        if not self._access.write:
            raise FormRefused(READ_ONLY, 403)
        action = actions.get(request.path_params["action"])
        if action is None:
            raise FormRefused(NO_ACTION, 404)
        if form.pop("sure", "") != "yes":
            return self._renderer.page(
                request, "confirm.html", action=action, queue=target.queue, id=target.id, form=form
            )
        outcome = await self._perform(request, action, target, form)
        signed = urlencode({"done": outcome, "by": self._access.signed(outcome)})
        return RedirectResponse(f"{self._next(request, action, target, form)}?{signed}", 303)

    async def _perform(self, request: Request, action: Action, target: Target, form: dict[str, str]) -> str:
        said = f"{action.name} of {shown(target.queue)} {target.id}".rstrip()
        address, given = address_of(request), {name: text for name, text in form.items() if name != "data"}
        try:
            outcome = await self._room.call(partial(action.perform, target, form))
        except FdbQueueError as error:
            _log.warning("%s by %s %s was refused: %s", said, address, shown(given), error)
            raise
        except DatabaseSilent as error:
            _log.warning("%s by %s %s has no known outcome: %s", said, address, shown(given), error)
            raise DatabaseSilent(f"{error}. It is not known whether the action has happened.") from error
        _log.info("%s by %s %s: %s", said, address, shown(given), outcome)
        self._sampler.expire()
        if action.drives:
            self._drivers.start(target.queue)
        return outcome

    def _next(self, request: Request, action: Action, target: Target, form: Mapping[str, str]) -> str:
        path = f"{request.scope.get('root_path', '')}/queues/{segment(target.queue)}"
        if form.get("back") == "dead":
            path += "/dead"
        elif target.id and action.name not in ("delete", "cancel"):
            path += f"/tasks/{target.id}"
        return path
