"""Forms: the fields that a browser sends, bounded, and only with the text of our own page."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from fdbqueue.core import limits
from fdbqueue.operate.dashboard.access import COOKIE, Access


class FormRefused(Exception):
    """The form is not taken; its text says why."""

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
            body.decode(),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=limits.FORM_FIELDS_MAX,
        )
    except ValueError:
        raise FormRefused("The form cannot be read.", 400) from None
    return dict(pairs)
