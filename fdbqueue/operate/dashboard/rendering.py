"""Rendering: templates to pages. Everything that a template shows is escaped."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from fdbqueue.core.version import __version__
from fdbqueue.operate.dashboard.access import COOKIE, Access
from fdbqueue.operate.dashboard.history import CHART_HEIGHT, CHART_WIDTH
from fdbqueue.operate.dashboard.texts import cell, moment, number, one_line, segment, short, span

THEME_COOKIE = "fdbqueue_theme"


@dataclass(frozen=True, slots=True)
class Shell:
    """The part of a page that does not depend on its view."""

    base: str
    """The path under which the dashboard is mounted; empty for the root of its server."""
    write: bool
    csrf: str
    theme: str
    """"light" or "dark", as the reader has chosen; empty for the theme of the system."""
    place: str
    """The database, in a few words."""
    is_signed_in: bool
    """True if there is a login to leave."""
    version: str = __version__


@cache
def environment() -> Environment:
    """The templates. They are compiled once in a process."""
    made = Environment(
        loader=PackageLoader("fdbqueue.operate.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"span": span, "number": number, "moment": moment, "segment": segment, "short": short}
    made.filters |= {"one_line": one_line, "cell": cell}
    made.globals |= {"chart_width": CHART_WIDTH, "chart_height": CHART_HEIGHT}
    return made


def theme_in(request: Request) -> str:
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in ("light", "dark") else ""


class Renderer:
    def __init__(self, access: Access, place: str = "") -> None:
        self._access = access
        self._place = place
        self._templates = environment()

    def shell(self, request: Request) -> Shell:
        cookie = request.cookies.get(COOKIE, "")
        has_login = self._access.token is not None and bool(cookie)
        return Shell(
            request.scope.get("root_path", ""),
            self._access.write,
            self._access.csrf(cookie),
            theme_in(request),
            self._place,
            has_login,
        )

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.text(template, shell=self.shell(request), **values), status)

    def text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)
