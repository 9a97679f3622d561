"""The commands, as click sees them."""

import io
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from fdbqueue.cli import put as putting
from fdbqueue.cli.exits import Refused, Trouble, say
from fdbqueue.cli.get import get as get_lines
from fdbqueue.cli.output import LineWriter
from fdbqueue.cli.session import Place
from fdbqueue.cli.signals import Signals
from fdbqueue.cli.values import LineReader, line_of, value_of
from fdbqueue.database import run

_URL = click.option("--url", metavar="URL", help="fdb:[CLUSTER_FILE], embedded:PATH or memory:")
_ROOT = click.option("--root", metavar="A[/B...]", help="the subspace that all queues are under [fdbqueue]")
_OUTER_URL, _OUTER_ROOT = "fdbqueue.url", "fdbqueue.root"
_NOTHING = object()


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@_URL
@_ROOT
@click.pass_context
def cli(context: click.Context, url: str | None, root: str | None) -> None:
    """Put into, and get from, the named queues of a database.

    The database is --url, else $FDBQUEUE_URL, else the cluster of $FDB_CLUSTER_FILE, else
    embedded:./fdbqueue-data. Status: 0 done; 1 nothing there, or refused; 2 a mistake, or no database.
    """
    context.meta.update({_OUTER_URL: url, _OUTER_ROOT: root})
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def in_a_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the Place of --url and --root, which may stand before it or behind it."""

    @_URL
    @_ROOT
    @wraps(command)
    def placed(url: str | None, root: str | None, **arguments: Any) -> Any:
        outer = click.get_current_context().meta
        return command(Place.of(url or outer[_OUTER_URL], root or outer[_OUTER_ROOT]), **arguments)

    return placed


@cli.command()
@click.argument("queue")
@click.argument("data", nargs=-1)
@click.option("--lines", type=click.File("rb"), metavar="FILE|-", help="put each line of a file")
@click.option("--text", is_flag=True, help="take everything as text, never as JSON")
@in_a_place
@click.pass_obj
def put(
    signals: Signals,
    place: Place,
    queue: str,
    data: tuple[str, ...],
    lines: io.BufferedReader | None,
    text: bool,
) -> None:
    """Put DATA into QUEUE, which the first put creates.

    What is JSON is put as that value, everything else as text: 42 is a number, hello a text. What begins
    like JSON ({, [ or a quote) and is not is refused. Empty lines are skipped. Data that begins with a dash
    comes after --.
    """
    if bool(data) == bool(lines):
        raise click.UsageError("put takes DATA, or --lines FILE")
    values = _values(data, text)
    with place.queue(queue, create=True) as (database, found):
        if lines is None:
            putting.put_values(database, found, values)
        else:
            reader = LineReader(lines, text)
            putting.put_lines(database, found, reader, putting.report_on(lines), signals)


@cli.command()
@click.argument("queue")
@click.option("-n", "count", type=click.IntRange(min=1), default=1, metavar="N", help="up to N items [1]")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="S", help="up to S seconds"
)
@in_a_place
@click.pass_obj
def get(signals: Signals, place: Place, queue: str, count: int, wait_s: float) -> None:
    """Take items out of QUEUE and print them, one JSON value a line.

    An item leaves the queue once its line has been written: after Ctrl-C, or when the reader of a pipe
    goes away, what was not printed is back in its old place. After a crash it comes back within seconds,
    and with it, perhaps, what was printed last.
    """
    with place.queue(queue) as (database, found):
        shown = get_lines(database, found.holder(database), stdout_of(signals), signals, count, wait_s)
        if not shown:
            raise Refused(f"{queue!r} is empty")


@cli.command()
@click.argument("queue")
@in_a_place
@click.pass_obj
def peek(signals: Signals, place: Place, queue: str) -> None:
    """Print the first item of QUEUE, which stays."""
    with place.queue(queue) as (database, found):
        value = found.peek(database, _NOTHING)
    if value is _NOTHING:
        raise Refused(f"{queue!r} is empty")
    stdout_of(signals).print(line_of(value))


@cli.command()
@click.argument("queue")
@in_a_place
@click.pass_obj
def size(signals: Signals, place: Place, queue: str) -> None:
    """Print the number of items in QUEUE."""
    with place.queue(queue) as (database, found):
        stdout_of(signals).print(line_of(found.size(database)))


@cli.command()
@click.argument("queue")
@click.option("--yes", is_flag=True, help="do it")
@in_a_place
def clear(place: Place, queue: str, yes: bool) -> None:
    """Remove every item of QUEUE."""
    with place.queue(queue) as (database, found):
        if not yes:
            raise Refused(f"clear would remove {found.size(database)} item(s) of {queue!r}: say --yes")

        def body(tr: Any) -> int:
            removed = found.size(tr)
            found.clear(tr)
            return removed

        say(f"{run(database, body)} removed")


@cli.command()
@click.option("--url", metavar="URL", help="a database to run on, instead of a temporary directory")
@click.pass_context
def demo(context: click.Context, url: str | None) -> int:
    """Processes that put and take, a kill in the middle, and a proof that nothing was lost."""
    from fdbqueue.demo import main

    return main(url or context.meta[_OUTER_URL])


def stdout_of(signals: Signals) -> LineWriter:
    return LineWriter(sys.stdout.fileno(), signals.check)


def _values(data: tuple[str, ...], as_text: bool) -> list[Any]:
    try:
        return [value_of(text, as_text) for text in data]
    except ValueError as reason:
        raise Trouble(str(reason)) from None


from fdbqueue.cli import elements as elements  # noqa: E402  # adds its commands to the group
