"""The options and arguments that commands share."""

import shlex
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.commands import OUTER_ROOT, OUTER_SHARED, OUTER_URL, ROOT, SHARED, URL
from fdbqueue.operate.cli.commands import cli as cli
from fdbqueue.operate.cli.commands import help_without_command as help_without_command
from fdbqueue.operate.cli.exits import require_stdout
from fdbqueue.operate.cli.output import LineWriter
from fdbqueue.operate.cli.session import Place, names_for_completion
from fdbqueue.operate.cli.wording import in_options

PROGRAM = "fdbqueue "


def in_a_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` a Place, from the options before or behind its name."""

    @URL
    @ROOT
    @SHARED
    @wraps(command)
    def placed(url: str | None, root: str | None, shared: bool, **arguments: Any) -> Any:
        outer = click.get_current_context().meta
        shared = shared or outer[OUTER_SHARED]
        with in_options():
            place = place_of(url, root, outer[OUTER_URL], outer[OUTER_ROOT], shared)
            return command(place, **arguments)

    return placed


def place_of(
    url: str | None, root: str | None, outer_url: str | None, outer_root: str | None, shared: bool = False
) -> Place:
    """Return the Place; options behind the command come before those in front of it. Raises UsageError."""
    url, root = outer_url if url is None else url, outer_root if root is None else root
    if root is not None and not all(root.split("/")):
        raise click.BadParameter(f"{root!r} has an empty part", param_hint="--root")
    return Place.of(url, root, shared)


def in_this_place(told: str) -> str:
    """Return a command that a message tells, with the options that name the database and the root."""
    context = click.get_current_context()
    given = {
        "--url": context.params.get("url") or context.meta[OUTER_URL],
        "--root": context.params.get("root") or context.meta[OUTER_ROOT],
    }
    where = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    return f"fdbqueue{where} {told.removeprefix(PROGRAM)}" if told.startswith(PROGRAM) else told


def queue_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return names of queues that begin with `incomplete`, in the database that the line names."""
    outer = context.find_root().params
    url = context.params.get("url") or outer.get("url")
    root = context.params.get("root") or outer.get("root")
    shared = bool(context.params.get("shared") or outer.get("shared"))
    try:
        place = Place.of(url or None, root or None, shared)
    except InvalidArgument:
        return []
    return names_for_completion(place, incomplete)


create_option = click.option("--create", is_flag=True, help="make a plain QUEUE if there is none")
queue_argument = click.argument("queue", metavar="QUEUE", shell_complete=queue_names)


def _printing(_: click.Context, __: click.Parameter, as_json: bool) -> bool:
    if as_json:
        require_stdout()
    return as_json


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_printing, help="print JSON, one value a line"
)


def stdout_of(signals: Signals) -> LineWriter:
    """Raises: CommandError if it is closed."""
    require_stdout()
    return LineWriter(sys.stdout.fileno(), signals.check)
