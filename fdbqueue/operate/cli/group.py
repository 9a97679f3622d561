"""The frame of a command: where it runs, and the options and arguments that commands share."""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.commands import (
    OUTER_ROOT,
    OUTER_SHARED,
    OUTER_URL,
    ROOT,
    SHARED,
    URL,
    help_without_command,
)
from fdbqueue.operate.cli.commands import cli as cli
from fdbqueue.operate.cli.exits import require_stdout, say
from fdbqueue.operate.cli.output import LineWriter
from fdbqueue.operate.cli.session import Place, names_for_completion
from fdbqueue.operate.cli.show import Columns, Row, stdout_of
from fdbqueue.operate.cli.show import show as show_rows
from fdbqueue.operate.cli.wording import in_options, line_of

PROGRAM = "fdbqueue "
Parameter = Callable[[Callable[..., Any]], Any]
"""A decorator that gives a command an argument or an option."""


@dataclass(frozen=True)
class Here(Place):
    """Where a command runs: its place, the signals of its process, and the form of its output."""

    signals: Signals
    as_json: bool

    def out(self) -> LineWriter:
        """Raises: CommandError if standard output is closed."""
        return stdout_of(self.signals)

    def print(self, value: Any) -> None:
        """Print one line of JSON."""
        self.out().print(line_of(value))

    def show(self, rows: Iterable[Row], columns: Columns) -> None:
        """Print rows: all of each as JSON, or its columns."""
        show_rows(self.signals, rows, columns, self.as_json)

    def tell(self, message: str, row: Row) -> None:
        """Report a change: as `row` in JSON, or as `message` on standard error."""
        if self.as_json:
            self.print(row)
        else:
            say(message)


def _printing(_: click.Context, __: click.Parameter, as_json: bool) -> bool:
    if as_json:
        require_stdout()
    return as_json


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_printing, help="print JSON, one value a line"
)


def command(
    group: click.Group, *first: Parameter, name: str | None = None, json: bool = True, **more: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of `group` from a function, which gets a Here first.

    Its arguments and options are the `first` ones, those that decorate the function, --json unless `json` is
    false, and those of the place.
    """

    def made(function: Callable[..., Any]) -> click.Command:
        @wraps(function)
        def called(
            url: str | None, root: str | None, shared: bool, as_json: bool = False, **arguments: Any
        ) -> Any:
            context = click.get_current_context()
            # Options behind the command come before those in front of it.
            url = context.meta[OUTER_URL] if url is None else url
            root = context.meta[OUTER_ROOT] if root is None else root
            if root is not None and not all(root.split("/")):
                raise click.BadParameter(f"{root!r} has an empty part", param_hint="--root")
            with in_options():
                place = Place.of(url, root, shared or context.meta[OUTER_SHARED])
                return function(Here(place.url, place.root, context.obj, as_json), **arguments)

        for parameter in reversed(first):
            parameter(function)
        own = getattr(function, "__click_params__", [])
        called.__click_params__ = []  # type: ignore[attr-defined]
        for parameter in (SHARED, ROOT, URL, *([json_option] if json else [])):
            parameter(called)
        called.__click_params__ += own  # type: ignore[attr-defined]
        return group.command(name, **more)(called)

    return made


def group(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """Make a group of commands from a function with its help text. Without a command, the group prints it."""

    def made(function: Callable[[], None]) -> click.Group:
        @cli.group(name, invoke_without_command=True)
        @click.pass_context
        @wraps(function)
        def helping(context: click.Context) -> None:
            help_without_command(context)

        return helping

    return made


def in_this_place(told: str) -> str:
    """Return a command that a message tells, with the options that name the database and the root."""
    context = click.get_current_context()
    given = {
        "--url": context.params.get("url") or context.meta[OUTER_URL],
        "--root": context.params.get("root") or context.meta[OUTER_ROOT],
    }
    where = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    return f"fdbqueue{where} {told.removeprefix(PROGRAM)}" if told.startswith(PROGRAM) else told


def again(*words: str) -> str:
    """Return a command that runs again here, as a shell takes it. A word with a dash is no option."""
    at = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return in_this_place(shlex.join(["fdbqueue", *words[:at], *(["--"] if words[at:] else []), *words[at:]]))


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


queue_argument = click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
yes_option = click.option("--yes", is_flag=True, help="confirm")
first_option = click.option(
    "-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]"
)
