"""Guard: the middleware in front of all pages. It decides, without I/O, who may see a page or change a queue.

A cookie is `issued.nonce.mac`. The mac is made with a secret of this process, so a restart signs all out.

Room: the database of a dashboard, each of its calls in a thread and with a bound. A page is one transaction,
so all its figures have one version. A look gives up after limits.LOOK_TIMEOUT_S, as does each transaction of
an action.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import anyio
from anyio import to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DatabaseClosed, StorageReplaced
from fdbqueue.core.open import host_name_in, is_address, is_local_name
from fdbqueue.core.pace import bounded, with_wishes
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.visible import text_of

T = TypeVar("T")


class DatabaseSilent(Exception):
    """The database has not answered in time, is closed or was replaced. Its text is the reason."""


class Room:
    """A database and a root, for the pages and actions of one dashboard."""

    def __init__(self, database: Database, root: Any = DEFAULT_ROOT) -> None:
        self.runtime = database.runtime
        self.root = root
        self.database = database.service("dashboard", _BoundedDatabase).database
        self.troubles = database.troubles
        self._threads = anyio.CapacityLimiter(limits.DASHBOARD_THREADS)

    async def look(self, body: Callable[[Transaction], T]) -> T:
        """Run `body` in one transaction that only reads. Raises DatabaseSilent."""
        return await self.call(partial(run, self.database, body, timeout_s=limits.LOOK_TIMEOUT_S))

    async def call(self, action: Callable[[], T]) -> T:
        """Run `action` in a thread. Raises DatabaseSilent."""
        with anyio.move_on_after(limits.LOOK_TIMEOUT_S) as waiting:
            await self._threads.acquire()
        if waiting.cancelled_caught:
            raise DatabaseSilent("other calls wait for it")
        try:
            return await to_thread.run_sync(partial(_silence_told, action), abandon_on_cancel=False)
        finally:
            self._threads.release()


def _silence_told(action: Callable[[], T]) -> T:
    silences: tuple[type[Exception], ...] = (DatabaseClosed, StorageReplaced, OSError, *engine_errors())
    try:
        return action()
    except silences as error:
        raise DatabaseSilent(text_of(error)) from error


class _BoundedDatabase:
    """A service: the same database, with transactions that end in time, and closed with it."""

    def __init__(self, database: Database) -> None:
        self.database = Database(_Bounded(database), database.runtime, session_ttr_s=database.session_ttr_s)
        # A transaction that falls back to default priority loses the timeout of its engine, but not this one.
        with_wishes(self.database, bounded(database.wishes, limits.LOOK_TIMEOUT_S))

    def close(self) -> None:
        self.database.close()

    def is_needed(self) -> bool:
        return True


class _Bounded:
    """The engine of a database, each transaction with a timeout."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_transaction(self) -> Transaction:
        transaction = self._database.create_transaction()
        transaction.options.set_timeout(round(limits.LOOK_TIMEOUT_S * 1000))
        return transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


COOKIE = "fdbqueue_dashboard"
_SIGNATURE_LENGTH = 32


@dataclass(frozen=True)
class Access:
    secret: bytes = field(repr=False)
    """Random bytes of this process."""
    token: str | None = field(default=None, repr=False)
    """None lets each request in that names this machine, or one of `names`."""
    names: frozenset[str] = frozenset()
    """Further names in Host headers, in lower case."""

    def knows_host(self, header: str) -> bool:
        """True if the Host header names this machine; with a token, any address: other sites need a name."""
        name = host_name_in(header)
        return is_local_name(header) or name in self.names or (self.token is not None and is_address(name))

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def is_signed_in(self, cookie: str, authorization: str, now: float) -> bool:
        """True without a token, for its header, and for a cookie that a login has given."""
        if self.token is None:
            return True
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return self._is_valid(cookie, now)

    def new_cookie(self, nonce: bytes, now: float) -> str:
        said = f"{int(now)}.{nonce.hex()}"
        return f"{said}.{self._mac('cookie', said)}"

    def csrf(self, cookie: str) -> str:
        """The text that each form of this browser has to send."""
        return self._mac("form", cookie)

    def signed(self, text: str) -> str:
        """The signature of a text that a redirect carries, so that no other page can invent one."""
        return self._mac("said", text)[:_SIGNATURE_LENGTH]

    def is_signed(self, text: str, signature: str) -> bool:
        return hmac.compare_digest(signature.encode(errors="replace"), self.signed(text).encode())

    def is_csrf(self, given: str, cookie: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.csrf(cookie).encode())

    def _is_valid(self, cookie: str, now: float) -> bool:
        said, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(errors="replace"), self._mac("cookie", said).encode()):
            return False
        return 0 <= now - int(said.partition(".")[0]) < limits.LOGIN_S

    def _mac(self, use: str, said: str) -> str:
        text = f"{use}\0{said}".encode(errors="replace")
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()


def is_same_origin(origin: str | None, fetch_site: str | None, host: str) -> bool:
    """True unless the browser says that a page of another site sends the form."""
    if fetch_site is not None:  # a proxy may have changed the Host header, but not this one
        return fetch_site in ("same-origin", "none")
    return origin is None or origin.partition("://")[2] == host


def address_of(request: Request) -> str:
    return "an unknown address" if request.client is None else request.client.host


class FormRefused(Exception):
    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


async def form_of(request: Request, access: Access) -> Mapping[str, str]:
    """The fields of a form that one of our pages has sent, without its `csrf`; of `task` all, with commas.

    Raises FormRefused.
    """
    fields = _fields(await _body(request))
    if not access.is_csrf(fields.pop("csrf", ""), request.cookies.get(COOKIE, "")):
        raise FormRefused("This form is no longer valid: go back, load the page again, and repeat.", 403)
    return fields


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise FormRefused("Only forms of this dashboard are taken.", 415)
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limits.FORM_BYTES_MAX:
                raise FormRefused(f"The form has more than {limits.FORM_BYTES_MAX:,} bytes.", 413)
    except ClientDisconnect:
        raise FormRefused("The form has not arrived whole.", 400) from None
    return body


def _fields(body: bytes) -> dict[str, str]:
    try:
        text, most = body.decode(), limits.FORM_FIELDS_MAX
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=most)
    except ValueError:
        raise FormRefused("The form cannot be read.", 400) from None
    ids = ",".join(text for name, text in pairs if name == "task")
    return dict(pairs) | ({"task": ids} if ids else {})


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN_PATHS = ("/login", "/healthz")
STATIC = "/static/"


class Guard:
    """Refuses names of other machines, forms of other sites, and requests without a login."""

    def __init__(self, app: ASGIApp, access: Access, runtime: Runtime) -> None:
        self._app = app
        self._access = access
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        path = path_of(request)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["Cache-Control"] = "no-cache" if path.startswith(STATIC) else "no-store"
            await send(message)

        answer = self._refusal(request, path) or self._app
        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request, path: str) -> Response | None:
        headers, host = request.headers, request.headers.get("host", "")
        if not self._access.knows_host(host):
            return PlainTextResponse("This dashboard does not answer to that host name.\n", 403)
        if request.method not in ("GET", "HEAD") and not is_same_origin(
            headers.get("origin"), headers.get("sec-fetch-site"), host
        ):
            return PlainTextResponse("A page of another site has sent this form.\n", 403)
        if path in OPEN_PATHS or path.startswith(STATIC) or self._is_signed_in(request):
            return None
        if request.method in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
            return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        return PlainTextResponse(
            "Sign in first: /login, or a header `Authorization: Bearer TOKEN`.\n",
            401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _is_signed_in(self, request: Request) -> bool:
        cookie, header = request.cookies.get(COOKIE, ""), request.headers.get("authorization", "")
        return self._access.is_signed_in(cookie, header, self._runtime.now())


def path_of(request: Request) -> str:
    """The path below the place where the dashboard is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))
