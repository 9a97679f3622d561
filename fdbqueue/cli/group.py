"""The program itself, and the options and arguments that all commands share."""

import shlex
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from fdbqueue.cli.output import LineWriter
from fdbqueue.cli.session import Place, names_for_completion
from fdbqueue.cli.wording import in_options
from fdbqueue.errors import InvalidArgument
from fdbqueue.signals import Signals
from fdbqueue.version import __version__

_URL = click.option("--url", metavar="URL", help="fdb:[CLUSTER_FILE] or embedded:PATH")
_ROOT = click.option("--root", metavar="A[/B...]", help="the subspace of all queues [fdbqueue]")
_SHARED = click.option(
    "--shared-directory", "shared", is_flag=True, help="trust all users that may write to its directory"
)
PROGRAM = "fdbqueue "
OUTER_URL, OUTER_ROOT, OUTER_SHARED = "fdbqueue.url", "fdbqueue.root", "fdbqueue.shared"


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@_URL
@_ROOT
@_SHARED
@click.pass_context
def cli(context: click.Context, url: str | None, root: str | None, shared: bool) -> None:
    """Use the queues and tasks of a database, and run workers for them.

    The database is --url, else $FDBQUEUE_URL, else the cluster of $FDB_CLUSTER_FILE, else
    embedded:./fdbqueue-data. Status: 0 done; 1 nothing found, or refused; 2 a mistake, or no database.
    """
    context.meta.update({OUTER_URL: url, OUTER_ROOT: root, OUTER_SHARED: shared})
    help_without_command(context)


def help_without_command(context: click.Context) -> None:
    """Print the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def in_a_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` a Place, from the options before or behind its name."""

    @_URL
    @_ROOT
    @_SHARED
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
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON, one value a line")


def stdout_of(signals: Signals) -> LineWriter:
    return LineWriter(sys.stdout.fileno(), signals.check)
