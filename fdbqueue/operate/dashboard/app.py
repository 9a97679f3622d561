"""The dashboard as an ASGI application: its routes, its life, and the pages of its errors.

Pages: from a request to a look at the database, to a view, to a template.

Posting: from a form to a confirmation, to an action, to the page that shows its outcome. Without `sure`, a
form gets the page that asks. So every action has its confirmation, also without a script.

Actions: what a form may do to a queue or a task, each with the sentence of its confirmation.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio
import msgspec
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
from fdbqueue.core.database import Database, as_database
from fdbqueue.core.errors import FdbQueueError, InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.visible import counted, shown
from fdbqueue.operate.dashboard.charts import chronicle_view
from fdbqueue.operate.dashboard.guard import COOKIE, Access, DatabaseSilent, FormRefused, Guard, Room, form_of
from fdbqueue.operate.dashboard.looks import (
    ENDED,
    STATES,
    see_chronicle,
    see_dead,
    see_queue,
    see_task,
)
from fdbqueue.operate.dashboard.rendering import Failures, Net, Renderer, Sampler, Streams
from fdbqueue.operate.dashboard.views import DeadView, name_in, queue_view, segment, task_view
from fdbqueue.tasks.dead_letters import RATE_PER_S, DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.redrive import RedriveState, RedriveStep

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The queue, and for an action on a task its id."""

    database: Database
    root: Any
    queue: str
    id: str = ""

    def tasks(self) -> TaskQueue:
        return TaskQueue.open(self.database, self.queue, root=self.root)

    def letters(self) -> DeadLetters:
        return DeadLetters.open(self.database, self.queue, root=self.root)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    default: str = ""
    help: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One action. `perform` returns the sentence that tells its outcome."""

    name: str
    label: str
    """The text of its button."""
    asks: str
    """The sentence of its confirmation."""
    perform: Callable[[Target, Form], str]
    is_dangerous: bool = False
    """True if it cannot be undone."""
    fields: tuple[Field, ...] = ()
    """Fields of its confirmation."""
    drives: bool = False
    """True if a redrive may have tasks to move afterwards."""


def _told(act: Callable[[Target], object], outcome: str) -> Callable[[Target, Form], str]:
    def perform(target: Target, _: Form) -> str:
        act(target)
        return outcome

    return perform


def _kick(target: Target, form: Form) -> str:
    count = whole(form, "count", 1, limits.BATCH_ITEMS_MAX)
    return f"{counted(target.tasks().kick(target.database, count), 'task')} kicked."


def _kick_class(target: Target, form: Form) -> str:
    letters, error, text = target.letters(), form.get("error"), form.get("text") or None
    kicked, after = letters.kick_some(target.database, error=error, text=text)
    while after is not None and kicked < limits.KICKED_MAX:
        more, after = letters.kick_some(target.database, error=error, text=text, after=after)
        kicked += more
    rest = "" if after is None else " Others are left: a redrive moves all."
    return f"{counted(kicked, 'task')} kicked.{rest}"


def _redrive(target: Target, form: Form) -> str:
    limit = form.get("limit", "").strip()
    target.letters().begin_redrive(
        target.database,
        error=form.get("error"),
        text=form.get("text") or None,
        rate_per_s=rate(form),
        into=form.get("into", "").strip() or None,
        limit=whole(form, "limit", 1, 10**12) if limit else None,
    )
    return "The redrive has begun."


def _stop_redrive(target: Target, _: Form) -> str:
    stopped = target.letters().stop_redrive(target.database)
    return f"The redrive is stopped: {counted(stopped.moved, 'task')} moved."


def _cancel(target: Target, _: Form) -> str:
    task = target.tasks().cancel(target.database, target.id)
    if task.cancel_asked is None:
        return "The task is cancelled."
    return "The task is marked: its handler learns of the cancel at its next heartbeat."


def _complete(target: Target, form: Form) -> str:
    queue, text = target.tasks(), form.get("result", "").strip()
    queue.complete(target.database, target.id, edited(queue, text) if text else None)
    return "The task is completed."


def _fail(target: Target, form: Form) -> str:
    target.tasks().fail(target.database, target.id, form.get("reason", "").strip())
    return "The attempt has failed: the task is ready again."


def _edit(target: Target, form: Form) -> str:
    letters, kick = target.letters(), form.get("kick") == "yes"
    letters.edit(target.database, target.id, edited(letters, form.get("data", "")), kick=kick)
    return "The task has the new data, and is ready." if kick else "The task has the new data."


def edited(queue: DeadLetters | TaskQueue, text: str) -> Any:
    if queue.options.get("codec") == "bytes":
        return text.replace("\r\n", "\n").encode()
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise InvalidArgument(name="the data", wanted="JSON (a text needs its quotes)", got=text) from None


def whole(form: Form, name: str, least: int, most: int) -> int:
    text = form.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and least <= int(text) <= most):
        raise InvalidArgument(name=name, wanted=f"a whole number from {least:,} to {most:,}", got=text)
    return int(text)


def rate(form: Form) -> float:
    text = form.get("rate", "").strip() or str(RATE_PER_S)
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1e9:
        raise InvalidArgument(name="rate", wanted="a positive number of tasks a second", got=text)
    return found


_COUNT = Field("count", "Number of tasks", "100", "the first ones, in order")
_TEXT = Field("text", "Text in the last failure", help="empty for all")
QUEUE_ACTIONS = {
    action.name: action
    for action in (
        Action(
            "pause",
            "Pause",
            "No task of this queue will be taken until it is resumed.",
            _told(lambda t: t.tasks().pause(t.database), "Paused: no task is taken until it is resumed."),
        ),
        Action(
            "resume",
            "Resume",
            "Tasks of this queue will be taken again.",
            _told(lambda t: t.tasks().resume(t.database), "Resumed: tasks are taken again."),
        ),
        Action("kick", "Kick", "Buried tasks become ready, at once.", _kick, fields=(_COUNT,)),
        Action("kick-class", "Kick all", "All buried tasks that match become ready, at once.", _kick_class),
        Action(
            "redrive",
            "Redrive",
            "Buried tasks that match go back at a bounded rate.",
            _redrive,
            fields=(
                Field("rate", "Tasks a second", f"{RATE_PER_S:g}"),
                _TEXT,
                Field("into", "Into another queue", help="empty for their own"),
                Field("limit", "At most", help="empty for all"),
            ),
            drives=True,
        ),
        Action(
            "redrive-pause",
            "Pause redrive",
            "The redrive moves no task until it goes on.",
            _told(lambda t: t.letters().pause_redrive(t.database), "The redrive is paused."),
        ),
        Action(
            "redrive-resume",
            "Go on",
            "This dashboard moves the tasks that are left.",
            _told(lambda t: t.letters().resume_redrive(t.database), "The redrive goes on."),
            drives=True,
        ),
        Action(
            "redrive-stop",
            "Stop redrive",
            "The redrive ends for good; the tasks that are left stay buried.",
            _stop_redrive,
            is_dangerous=True,
        ),
    )
}
TASK_ACTIONS = {
    action.name: action
    for action in (
        Action(
            "kick",
            "Kick",
            "The task becomes ready. Its failures so far no longer count.",
            _told(lambda t: t.letters().kick(t.database, t.id), "The task is ready again."),
        ),
        Action(
            "bury",
            "Bury",
            "The task is put aside until it is kicked. A lease of it ends.",
            _told(lambda t: t.tasks().bury(t.database, t.id), "The task is buried."),
        ),
        Action(
            "cancel",
            "Cancel",
            "The task ends without another attempt. A running handler is told at its next heartbeat.",
            _cancel,
            is_dangerous=True,
        ),
        Action(
            "delete",
            "Delete",
            "The task is removed for good.",
            _told(lambda t: t.tasks().delete(t.database, t.id), "The task is deleted."),
            is_dangerous=True,
        ),
        Action(
            "complete",
            "Complete",
            "The task was handed off. Its work is done, and it ends.",
            _complete,
            is_dangerous=True,
            fields=(Field("result", "Result", help="empty for none"),),
        ),
        Action(
            "fail",
            "Fail",
            "The task was handed off. Its attempt fails, and it is ready again.",
            _fail,
            fields=(Field("reason", "Reason"),),
        ),
        Action("edit", "Save", "The task gets other data. Its old data is lost.", _edit, is_dangerous=True),
    )
}


T = TypeVar("T")
V = TypeVar("V")


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
        asked = {"name": name, "state": state, "after": after}
        view = await self._seen(lambda look: queue_view(look, trend, after), see_queue, **asked)
        return self._page(request, "queue.html", view, QUEUE_ACTIONS)

    async def task(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        view = await self._seen(task_view, see_task, name=queue_of(request), id_=id_)
        return self._page(request, "task.html", view, TASK_ACTIONS)

    async def dead(self, request: Request) -> Response:
        given, name = request.query_params, queue_of(request)
        asked = {"error": given.get("error"), "text": given.get("text") or None, "after": given.get("after")}
        view = await self._seen(lambda look: DeadView(look, **asked), see_dead, name=name, **asked)
        return self._page(request, "dead.html", view, QUEUE_ACTIONS)

    async def chronicle(self, request: Request) -> Response:
        view = await self._seen(chronicle_view, see_chronicle, name=queue_of(request))
        return self._renderer.page(request, "chronicle.html", view=view)

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
            max_age=int(limits.LOGIN_S),
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
            view: dict[str, Any] = {"action": action, "queue": target.queue, "id": target.id, "form": form}
            return self._renderer.page(request, "confirm.html", **view)
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
        elif target.id and action.name not in ("delete", "cancel", "complete"):
            path += f"/tasks/{target.id}"
        return path


SECRET_BYTES = 32
_log = logger("fdbqueue.dashboard")


def create_app(
    db: AnyDatabase,
    *,
    write: bool = False,
    token: str | None = None,
    names: Iterable[str] = (),
    place: str = "",
    root: Any = DEFAULT_ROOT,
) -> Starlette:
    """The dashboard of the queues under `root`, as an ASGI application.

    `write` allows actions. With a `token`, browsers sign in with it; without one, only this machine and the
    host `names` are answered, so a proxy in front must know its users. Each page tells `place`, a name of the
    database. A server may mount the application under a path.
    Raises: NotADatabase, InvalidArgument for a token of less than limits.TOKEN_LENGTH_MIN characters.
    """
    database = as_database(db)
    if token is not None and len(checked_instance("token", token, str)) < limits.TOKEN_LENGTH_MIN:
        wanted = f"a text of at least {limits.TOKEN_LENGTH_MIN} characters"
        raise InvalidArgument(name="token", wanted=wanted, got="a shorter one")
    secret = database.runtime.random_bytes(SECRET_BYTES)
    access = Access(secret, token, frozenset(name.lower() for name in names), write)
    room, renderer = Room(database, root), Renderer(access, place)
    sampler, drivers = Sampler(room), Drivers(room)
    streams = Streams(sampler, renderer)
    pages = Pages(room, access, renderer, sampler, streams)
    posting = Posting(room, access, renderer, drivers, sampler)
    failures = Failures(room, renderer)
    app = Starlette(
        routes=routes_of(pages, posting),
        middleware=[
            Middleware(Guard, access=access, runtime=database.runtime),
            Middleware(Net, failures=failures),
        ],
        exception_handlers={
            HTTPException: failures.http,
            FormRefused: failures.refused_form,
            FdbQueueError: failures.refused,
            DatabaseSilent: failures.silent,
        },
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


class Life:
    """The parts that run beside requests, for a server that tells an application of its start and end."""

    def __init__(self, room: Room, sampler: Sampler, drivers: Drivers, streams: Streams) -> None:
        self._room = room
        self._sampler = sampler
        self._drivers = drivers
        self._streams = streams

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._sample)
            try:
                yield
            finally:
                self._streams.close()
                await self._drivers.stop()
                group.cancel_scope.cancel()

    async def _sample(self) -> None:
        """Keep the sparklines growing while no page is open."""
        while True:
            try:
                await self._sampler.latest()
            except Exception as error:
                self._room.troubles.met(_log, "the queues could not be looked at", error)
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
