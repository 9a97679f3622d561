"""Rendering: templates to pages. Everything that a template shows is escaped."""

from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from fdbqueue.dashboard.access import COOKIE, Access
from fdbqueue.dashboard.history import CHART_HEIGHT, CHART_WIDTH
from fdbqueue.dashboard.texts import cell, moment, number, one_line, segment, span
from fdbqueue.version import __version__


@dataclass(frozen=True, slots=True)
class Shell:
    """The part of a page that does not depend on its view."""

    base: str
    """The path under which the dashboard is mounted; empty for the root of its server."""
    write: bool
    csrf: str
    is_signed_in: bool
    """True if there is a login to leave."""
    version: str = __version__


def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fdbqueue.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"span": span, "number": number, "moment": moment, "segment": segment}
    made.filters |= {"one_line": one_line, "cell": cell}
    made.globals |= {"chart_width": CHART_WIDTH, "chart_height": CHART_HEIGHT}
    return made


class Renderer:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._templates = environment()

    def shell(self, request: Request) -> Shell:
        cookie = request.cookies.get(COOKIE, "")
        has_login = self._access.token is not None and bool(cookie)
        return Shell(
            request.scope.get("root_path", ""), self._access.write, self._access.csrf(cookie), has_login
        )

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.text(template, shell=self.shell(request), **values), status)

    def text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)
