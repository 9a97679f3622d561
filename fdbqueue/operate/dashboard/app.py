"""The dashboard as an ASGI application: its routes, its life, and the pages of its errors."""

import signal
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_instance
from fdbqueue.core.database import as_database
from fdbqueue.core.errors import FdbQueueError, InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.operate.dashboard.guard import Access, DatabaseSilent, FormRefused, Guard, Room
from fdbqueue.operate.dashboard.pages import Drivers, Pages, Posting
from fdbqueue.operate.dashboard.rendering import Failures, Net, Renderer, Sampler, Streams

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
