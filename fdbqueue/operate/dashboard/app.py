"""The dashboard as an ASGI application: its routes, its life, and the pages of its errors.

Pages: from a request to a look at the database, to a view, to a template.

Posting: from a form to a confirmation, to an action, to the page that shows its outcome. Without `sure`, a
form gets the page that asks. So every action has its confirmation, also without a script.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_instance
from fdbqueue.core.database import as_database
from fdbqueue.core.errors import FdbQueueError, InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.redaction import KEYS, Redaction
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.visible import shown
from fdbqueue.operate.audit import lines
from fdbqueue.operate.dashboard.actions import TASK_ACTIONS, UNTOLD, Action, Target, performed
from fdbqueue.operate.dashboard.charts import chronicle_view
from fdbqueue.operate.dashboard.guard import (
    COOKIE,
    Access,
    DatabaseSilent,
    FormRefused,
    Guard,
    Room,
    address_of,
    form_of,
)
from fdbqueue.operate.dashboard.looks import (
    ENDED,
    STATES,
    ChronicleLook,
    DeadLook,
    QueueLook,
    Sight,
    TaskLook,
    see_chronicle,
    see_dead,
    see_queue,
    see_task,
)
from fdbqueue.operate.dashboard.rendering import Failures, Net, Renderer, Sampler, Streams
from fdbqueue.operate.dashboard.roles import ACT, LOOK, PAYLOADS, PURGE, Actor, Authorize, Roles, roles_of
from fdbqueue.operate.dashboard.several import ACTIONS_OF_QUEUE, Preview, preview, search_of
from fdbqueue.operate.dashboard.views import DeadView, name_in, queue_view, segment, task_view
from fdbqueue.operate.filters import FIELDS, filters_of, searched
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.redrive import RedriveState, RedriveStep
from fdbqueue.tasks.stored.records import id_bytes

L = TypeVar("L", QueueLook, TaskLook, DeadLook, ChronicleLook)
V = TypeVar("V")


@dataclass(frozen=True)
class Pages:
    room: Room
    access: Access
    roles: Roles
    renderer: Renderer
    sampler: Sampler
    streams: Streams

    async def queues(self, request: Request) -> Response:
        sample = await self.sampler.latest()
        if sample.view is None:
            raise DatabaseSilent(sample.silence)
        view = self.roles.view(request, sample.view, self.sampler.history)
        return self.renderer.page(request, "queues.html", view=view)

    async def audit(self, request: Request) -> Response:
        keys = RootKeys(self.room.root)
        found = self.roles.lines(request, await self.room.look(lambda tr: lines(tr, keys)))
        return self.renderer.page(request, "audit.html", lines=found[: limits.AUDIT_SHOWN])

    async def queue(self, request: Request) -> Response:
        name, after = queue_of(request), request.query_params.get("after")
        state = request.query_params.get("state") or "ready"
        if state not in (*STATES, ENDED):
            wanted = f"one of {', '.join((*STATES, ENDED))}"
            raise InvalidArgument(name="state", wanted=wanted, got=state)
        search, redaction = searched(request.query_params), self.roles.redaction_for(request, name)
        if id_ := search.get("id"):
            id_bytes(id_)
            return RedirectResponse(f"{self._base(request)}/queues/{segment(name)}/tasks/{id_}", 303)
        trend, fields = self.sampler.history.trend(name), open_fields(redaction)
        see = partial(see_queue, state=state, after=after, where=open_filters(search, redaction))
        view = await self._seen(request, see, lambda look: queue_view(look, trend, after, search, fields))
        return self._page(request, "queue.html", view, ACTIONS_OF_QUEUE)

    async def task(self, request: Request) -> Response:
        view = await self._seen(request, partial(see_task, id_=request.path_params["id"]), task_view)
        return self._page(request, "task.html", view, TASK_ACTIONS)

    async def dead(self, request: Request) -> Response:
        given = request.query_params
        error, text, after = given.get("error"), given.get("text") or None, given.get("after")
        searched = self.roles.redaction_for(request, queue_of(request)) is None
        if text and not searched:
            raise FormRefused(NO_SEARCH, 403)
        see = partial(see_dead, error=error, text=text, after=after)
        view = await self._seen(request, see, lambda look: DeadView(look, error, text, after, searched))
        return self._page(request, "dead.html", view, ACTIONS_OF_QUEUE)

    async def chronicle(self, request: Request) -> Response:
        view = await self._seen(request, see_chronicle, chronicle_view)
        return self.renderer.page(request, "chronicle.html", view=view)

    async def events(self, request: Request) -> Response:
        if self.streams.are_full:
            return PlainTextResponse("There are too many open pages.\n", 503)
        part = request.query_params.get("queue")
        return self.streams.answer(request, None if part is None else name_in(part))

    async def health(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def login(self, request: Request) -> Response:
        if self.access.token is None:
            return RedirectResponse(f"{self._base(request)}/", 303)
        return self.renderer.page(request, "login.html", said="")

    async def do_login(self, request: Request) -> Response:
        form, now = await form_of(request, self.access), self.room.runtime.now()
        if not self.access.is_token(form.get("token", "")):
            _log.warning("a login from %s has failed", address_of(request))
            return self.renderer.page(request, "login.html", 403, said="That is not the token.")
        _log.info("a login from %s", address_of(request))
        answer = RedirectResponse(f"{self._base(request)}/", 303)
        answer.set_cookie(
            COOKIE,
            self.access.new_cookie(self.room.runtime.random_bytes(16), now),
            max_age=int(limits.LOGIN_S),
            path=f"{self._base(request)}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def do_logout(self, request: Request) -> Response:
        await form_of(request, self.access)
        answer = RedirectResponse(f"{self._base(request)}/login", 303)
        answer.delete_cookie(COOKIE, path=f"{self._base(request)}/", httponly=True, samesite="strict")
        return answer

    async def _seen(self, request: Request, see: Callable[[Sight], L], view: Callable[[L], V]) -> V:
        """The view of a look. A large payload takes time to be shown, so that is done in the thread too.

        Raises: FormRefused for a queue that the request may not look at.
        """
        room, name = self.room, queue_of(request)
        self.roles.require(request, LOOK, name)
        place = room.database, room.root, room.runtime.now(), name
        return await room.look(lambda tr: view(self.roles.seen(request, name, see(Sight(tr, *place)))))

    def _page(self, request: Request, template: str, view: object, actions: Mapping[str, Action]) -> Response:
        """A page with the buttons that the request may use. It tells the outcome of the action before it."""
        said, signature = request.query_params.get("done", ""), request.query_params.get("by", "")
        done = said if self.access.is_signed(said, signature) else ""
        queue = queue_of(request)
        purges, opens = (self.roles.may(request, needed, queue) for needed in (PURGE, PAYLOADS))
        actions = {
            name: action
            for name, action in actions.items()
            if (purges or action.needs != PURGE) and (opens or not action.opens)
        }
        return self.renderer.page(request, template, of=queue, view=view, actions=actions, done=done)

    def _base(self, request: Request) -> str:
        return str(request.scope.get("root_path", ""))


def open_fields(redaction: Redaction | None) -> dict[str, str]:
    """The fields of a search that the reader may fill."""
    closed = [] if redaction is None else [name for name in FOUND_IN if redaction.meets(f"{name}.")]
    return {name: label for name, label in FIELDS.items() if name not in closed}


def open_filters(search: Mapping[str, str], redaction: Redaction | None) -> dict[str, Any]:
    """The filters of a search. Raises: FormRefused for a hidden part, which a search could guess."""
    try:
        filters = filters_of(search)
    except ValueError as reason:
        raise FormRefused(f"{reason}.", 400) from None
    for name, value in filters.items():
        if redaction is not None and name.split(".")[0] in FOUND_IN and redaction.meets(name, value):
            raise FormRefused(NO_FIND, 403)
    return filters


def queue_of(request: Request) -> str:
    return name_in(request.path_params["name"])


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
                    state, moved = step.redrive.state, step.redrive.moved
                    _log.info("the redrive of %s is %s: %d moved", queue, state, moved)
                    return
                await asyncio.sleep(min(step.wait_s, limits.REDRIVE_LOOK_S))
        except FdbQueueError as error:
            _log.warning("the redrive of %s has ended here: %s", queue, error)

    def _step(self, queue: str) -> RedriveStep:
        database = self._room.database
        return DeadLetters.open(database, queue, root=self._room.root).step_redrive(database)


NO_ACTION = "There is no such action."
NO_SEARCH = "Parts of the failures are hidden from you, so you may not search their texts."
NO_FIND = "Parts of the tasks there are hidden from you, so you may not search them."
FOUND_IN = ("data", "headers", *KEYS)
READ_ONLY = "This dashboard is read-only: `fdbqueue dashboard --write` changes queues."


@dataclass(frozen=True)
class Posting:
    room: Room
    access: Access
    roles: Roles
    renderer: Renderer
    drivers: Drivers
    sampler: Sampler

    async def queue(self, request: Request) -> Response:
        return await self._post(request, ACTIONS_OF_QUEUE)

    async def task(self, request: Request) -> Response:
        return await self._post(request, TASK_ACTIONS)

    async def _post(self, request: Request, actions: Mapping[str, Action]) -> Response:
        form = dict(await form_of(request, self.access))
        if not self.roles.write:
            raise FormRefused(READ_ONLY, 403)
        action = actions.get(request.path_params["action"])
        if action is None:
            raise FormRefused(NO_ACTION, 404)
        target = self._target(request, action, form)
        if form.pop("sure", "") != "yes":
            seen = await self._preview(target, action, form) if action.states else None
            if seen is not None:
                form = {"back": form.get("back", ""), "task": ",".join(seen.ids)}
            view: dict[str, Any] = {"action": action, "queue": target.queue, "id": target.id, "form": form}
            return self.renderer.page(request, "confirm.html", preview=seen, **view)
        outcome = await self._perform(request, action, target, form)
        back = parse_qsl(form.get("back", "")) if action.states else []
        signed = urlencode([*back, ("done", outcome), ("by", self.access.signed(outcome))])
        return RedirectResponse(f"{self._next(request, action, target, form)}?{signed}", 303)

    async def _preview(self, target: Target, action: Action, form: Mapping[str, str]) -> Preview:
        search, after = search_of(form)
        where = open_filters(search, target.redaction)
        return await self.room.call(partial(preview, target, action.states, where, after))

    def _target(self, request: Request, action: Action, form: Mapping[str, str]) -> Target:
        """Raises: FormRefused for an action that the actor may not take."""
        queue, into = queue_of(request), form.get("into", "").strip()
        redaction = self.roles.redaction_for(request, queue)
        asked = [(LOOK, queue), (action.needs, queue), *[(ACT, into)] * bool(into)]
        if action.opens or into:  # data of this queue can be read in the other one
            asked.append((PAYLOADS, queue))
        for needed, name in asked:
            self.roles.require(request, needed, name)
        if form.get("text") and redaction is not None:
            raise FormRefused(NO_SEARCH, 403)
        id_, actor = request.path_params.get("id", ""), self.roles.actor(request)
        return Target(self.room.database, self.room.root, queue, id_, redaction, actor)

    async def _perform(self, request: Request, action: Action, target: Target, form: dict[str, str]) -> str:
        said = f"{action.name} of {shown(target.queue)} {target.id}".rstrip()
        address = f"{shown(target.actor)} at {address_of(request)}"
        given = {name: text for name, text in form.items() if name not in (*UNTOLD, "back")}
        try:
            outcome = await self.room.call(partial(performed, action, target, form))
        except FdbQueueError as error:
            why = type(error).__name__ if any(map(form.get, UNTOLD)) else error  # it may tell the data
            _log.warning("%s by %s %s was refused: %s", said, address, shown(given), why)
            raise
        except DatabaseSilent as error:
            _log.warning("%s by %s %s has no known outcome: %s", said, address, shown(given), error)
            raise DatabaseSilent(f"{error}. It is not known whether the action has happened.") from error
        _log.info("%s by %s %s: %s", said, address, shown(given), outcome)
        self.sampler.expire()
        if action.drives:
            self.drivers.start(target.queue)
        return outcome

    def _next(self, request: Request, action: Action, target: Target, form: Mapping[str, str]) -> str:
        path = f"{request.scope.get('root_path', '')}/queues/{segment(target.queue)}"
        if form.get("back") == "dead":
            path += "/dead"
        elif target.id and action.name not in ("delete", "cancel", "complete"):
            path += f"/tasks/{target.id}"
        return path


SECRET_BYTES = 32
REFUSALS = HTTPException, FormRefused, FdbQueueError, DatabaseSilent
_log = logger("fdbqueue.dashboard")


def create_app(
    db: AnyDatabase,
    *,
    write: bool = False,
    token: str | None = None,
    names: Iterable[str] = (),
    place: str = "",
    root: Any = DEFAULT_ROOT,
    authorize: Authorize | None = None,
    actor: Actor | None = None,
    redact: Any = None,
) -> Starlette:
    """The dashboard of the queues under `root`, as an ASGI application.

    `write` allows actions. With a `token`, browsers sign in with it; without one, only this machine and the
    host `names` are answered, so a proxy in front must know its users. Each page tells `place`, a name of the
    database. A server may mount the application under a path.

    `authorize(request, action, queue)` tells by a bool if a request may "look" at a queue, see its
    "payloads", "act" on it, or "purge" its tasks; the queue is None for all that belongs to none.
    `actor(request)` is the name for the audit and the log. `redact`: paths such as "data.card" and
    "headers.token", or a function of a path and its value, which is hidden if the answer is true. The
    functions run often, in the event loop or a thread: they must be quick. One that raises, or answers
    something else, refuses or hides.
    Raises: NotADatabase, InvalidArgument for a token of less than limits.TOKEN_LENGTH_MIN characters.
    """
    database = as_database(db)
    if token is not None and len(checked_instance("token", token, str)) < limits.TOKEN_LENGTH_MIN:
        wanted = f"a text of at least {limits.TOKEN_LENGTH_MIN} characters"
        raise InvalidArgument(name="token", wanted=wanted, got="a shorter one")
    secret = database.runtime.random_bytes(SECRET_BYTES)
    access = Access(secret, token, frozenset(name.lower() for name in names))
    roles = roles_of(write, authorize, actor, redact)
    room, renderer = Room(database, root), Renderer(access, roles, place)
    sampler, drivers = Sampler(room), Drivers(room)
    streams = Streams(sampler, renderer, roles)
    pages = Pages(room, access, roles, renderer, sampler, streams)
    posting = Posting(room, access, roles, renderer, drivers, sampler)
    failures = Failures(room, renderer)
    app = Starlette(
        routes=routes_of(pages, posting),
        middleware=[
            Middleware(Guard, access=access, runtime=database.runtime),
            Middleware(Net, failures=failures),
        ],
        exception_handlers=dict.fromkeys(REFUSALS, failures.refused),
        lifespan=Life(room, sampler, drivers, streams).lifespan,
    )
    app.router.redirect_slashes = False
    app.state.streams = streams
    return app


def routes_of(pages: Pages, posting: Posting) -> list[Route | Mount]:
    queue, task = "/queues/{name}", "/queues/{name}/tasks/{id}"
    return [
        Route("/", pages.queues),
        Route("/healthz", pages.health),
        Route("/audit", pages.audit),
        Route("/events", pages.events),
        Route("/login", pages.login, methods=["GET"]),
        Route("/login", pages.do_login, methods=["POST"]),
        Route("/logout", pages.do_logout, methods=["POST"]),
        Route(queue, pages.queue),
        Route(f"{queue}/dead", pages.dead),
        Route(f"{queue}/chronicle", pages.chronicle),
        Route(task, pages.task),
        Route(f"{queue}/{{action}}", posting.queue, methods=["POST"]),
        Route(f"{task}/{{action}}", posting.task, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("fdbqueue.operate.dashboard", "static")])),
    ]


@dataclass(frozen=True)
class Life:
    """The parts that run beside requests, for a server that tells an application of its start and end."""

    room: Room
    sampler: Sampler
    drivers: Drivers
    streams: Streams

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._sample)
            try:
                yield
            finally:
                self.streams.close()
                await self.drivers.stop()
                group.cancel_scope.cancel()

    async def _sample(self) -> None:
        """Keep the sparklines growing while no page is open."""
        while True:
            try:
                await self.sampler.latest()
            except Exception as error:
                self.room.troubles.met(_log, "the queues could not be looked at", error)
            await anyio.sleep(limits.DASHBOARD_LOOK_EVERY_S)


SHUTDOWN_S = 8
CONNECTIONS_MAX = 250


class Server(uvicorn.Server):
    """A server that ends the streams of events before it waits for its connections."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
                ws="none",
                limit_concurrency=CONNECTIONS_MAX,
                lifespan="on",
            )
        )
        self._streams = app.state.streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A hangup, too, ends the server in order, unless it is ignored."""
        with super().capture_signals():
            before = signal.getsignal(signal.SIGHUP)
            # In another thread than the main one, no signal is captured.
            captures = signal.getsignal(signal.SIGTERM) == self.handle_exit and before is not signal.SIG_IGN
            if captures:
                signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                if captures:
                    signal.signal(signal.SIGHUP, before)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self._streams.close()
        await super().shutdown(sockets)


def listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
