"""Guard: the middleware in front of all pages. It asks access.py, and adds the headers of all answers."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdbqueue.core import limits
from fdbqueue.core.runtime import Runtime
from fdbqueue.operate.dashboard.access import COOKIE, Access, is_same_origin


class FormRefused(Exception):
    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


async def form_of(request: Request, access: Access) -> Mapping[str, str]:
    """The fields of a form that one of our pages has sent, without its `csrf`. Raises FormRefused."""
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
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=limits.FORM_FIELDS_MAX
        )
    except ValueError:
        raise FormRefused("The form cannot be read.", 400) from None
    return dict(pairs)


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
