"""`fdbqueue put` for all queues, and `get`, `peek`, `size` and `clear` for plain ones."""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fdbqueue.core import limits
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database
from fdbqueue.core.registry.definition import PLAIN
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli import put as putting
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.get import get as get_lines
from fdbqueue.operate.cli.group import cli, create_option, in_a_place, json_option, queue_argument, stdout_of
from fdbqueue.operate.cli.parameters import SPAN, WAIT, Input, Scope, Seconds
from fdbqueue.operate.cli.put import Sink
from fdbqueue.operate.cli.put_values import header_of, key_in, values_of, with_limit_key
from fdbqueue.operate.cli.rows import task_row
from fdbqueue.operate.cli.session import CREATE_HERE, Place
from fdbqueue.operate.cli.show import tell
from fdbqueue.operate.cli.values import LineReader, line_of
from fdbqueue.queues import recipe
from fdbqueue.tasks.unique import OnConflict

if TYPE_CHECKING:
    from fdbqueue.queues.recipe.queue import Queue
    from fdbqueue.tasks.queue import TaskQueue

CREATE_EITHER = "--create makes a plain one, `fdbqueue create {name}` one of tasks"
_NOTHING = object()


@cli.command()
@queue_argument
@click.argument("data", nargs=-1)
@click.option("--lines", type=Input("rb"), metavar="FILE|-", help="put each line of a file")
@click.option("--text", is_flag=True, help="put all data as text, never as JSON")
@create_option
@click.option("--priority", "pri", type=int, metavar="N", help="of tasks: the lowest is taken first")
@click.option("--delay", type=Seconds(), metavar="S", help="of tasks: ready in S seconds")
@click.option("--ttl", type=SPAN, metavar="S", help="of tasks: they live S seconds")
@click.option("--ttr", type=SPAN, metavar="S", help="of tasks: each lease lasts S seconds")
@click.option("--key", metavar="KEY", help="of tasks: the task key, as JSON or text")
@click.option("--cost", type=int, metavar="N", help="of tasks: each counts as N tasks of its key")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=TEXT", help="of tasks: a header; repeatable"
)
@click.option("--result-ttl", type=SPAN, metavar="S", help="of tasks: their results are kept for S seconds")
@click.option("--unique", metavar="KEY", help="of tasks: make none if a task has KEY, as JSON or text")
@click.option(
    "--scope", type=Scope(), metavar="SCOPE", help="of KEY: queued, unfinished or seconds [unfinished]"
)
@click.option(
    "--on-conflict",
    type=click.Choice([one.value for one in OnConflict]),
    help="of --unique: if a task has KEY [skip]",
)
@click.option(
    "--debounce-max", type=SPAN, metavar="S", help="of debounce: ready S seconds after the first put"
)
@click.option("--limit", "limits", multiple=True, metavar="NAME", help="of tasks: a limit; repeatable")
@click.option(
    "--limit-key",
    "limit_key",
    type=(str, str),
    multiple=True,
    metavar="NAME KEY",
    help="of tasks: one more limit, for KEY",
)
@click.option("--group", metavar="GROUP", help="of tasks: members of an open group, by its id")
@click.option("--after", metavar="ID", help="of tasks: delayed until the task ID of QUEUE has ended")
@click.option("--timeout", type=WAIT, metavar="S", help="of tasks: wait S seconds for room in a full queue")
@json_option
@in_a_place
@click.pass_obj
def put(
    signals: Signals,
    /,
    place: Place,
    queue: str,
    data: tuple[str, ...],
    lines: io.BufferedReader | None,
    text: bool,
    create: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Put DATA into QUEUE, which must exist: `create` makes one, --create a plain one.

    JSON is put as its value, other data as text: 42 is a number, hello a text. Data is refused if it begins
    like JSON ({, [ or a quote) but is not JSON. Empty lines are skipped. Write -- before data that begins
    with a dash. Options of tasks are for task queues of a kind that has them (see `create`). With --json,
    each task is printed on a line; `existed` is true for one that had the unique KEY before.
    """
    if bool(data) == bool(lines):
        raise click.UsageError("put takes DATA, or --lines FILE")
    _check_unique(options, data)
    values = values_of(data, text)
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in {"key", "unique"} & set(given):
        given[name] = key_in(given[name], text)
    with_limit_key(given, text)
    if "headers" in given:
        given["headers"] = dict(map(header_of, given["headers"]))

    def sink_in(database: Database) -> tuple[Sink, int]:
        kind = place.kind_of(database, queue, CREATE_EITHER, PLAIN if create else None)
        return _sink(signals, place, database, queue, kind, given, as_json)

    def trial(database: Database) -> None:
        sink, batch_max = sink_in(database)
        putting.put_values(sink, values, batch_max)

    with place.made(trial, queue, create=create, cure=CREATE_HERE) as database:
        uncounted, batch_max = sink_in(database)
        with putting.counted(uncounted, queue) as sink:
            if lines is None:
                putting.put_values(sink, values, batch_max)
            else:
                reader = LineReader(lines, text)
                putting.put_lines(sink, reader, batch_max, late.reports.report_on(lines), signals)


@cli.command()
@queue_argument
@click.option("-n", "count", type=click.IntRange(min=1), default=1, metavar="N", help="up to N items [1]")
@click.option(
    "--wait", "wait_s", type=Seconds(endless=True), default=0.0, metavar="S", help="wait up to S seconds"
)
@json_option
@in_a_place
@click.pass_obj
def get(signals: Signals, place: Place, queue: str, count: int, wait_s: float, as_json: bool) -> None:
    """Take items out of QUEUE and print them, one JSON value a line.

    An item leaves the queue when its line was written; on a pipe, when the line was read, and only then is
    the next one written. After Ctrl-C, or when the reader closes the pipe, the other items are back in their
    places. After a crash they come back within seconds; the item of the last line may come back too. For
    tasks, use `work`, which runs a handler for each. With --json, each line is an object with the item as its
    `data`.
    """
    with place.queue(queue) as (database, found):
        holder, line = found.holder(database), _line(as_json)
        shown = get_lines(database, holder, stdout_of(signals), signals, count, wait_s, line)
        if not shown:
            raise Refused(f"{queue!r} is empty")


@cli.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def peek(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Print the first item of QUEUE as JSON, without removing it.

    With --json, an object has the item as its `data`.
    """
    with place.queue(queue) as (database, found):
        value = found.peek(database, _NOTHING)
    if value is _NOTHING:
        raise Refused(f"{queue!r} is empty")
    stdout_of(signals).print(_line(as_json)(value))


def _line(as_json: bool) -> Callable[[Any], bytes]:
    return (lambda value: line_of({"data": value})) if as_json else line_of


@cli.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def size(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Print the number of items in QUEUE.

    With --json, an object has it as `items`.
    """
    with place.queue(queue) as (database, found):
        items = found.size(database)
    stdout_of(signals).print(line_of({"queue": queue, "items": items} if as_json else items))


@cli.command()
@queue_argument
@click.option("--yes", is_flag=True, help="confirm")
@json_option
@in_a_place
@click.pass_obj
def clear(signals: Signals, place: Place, queue: str, yes: bool, as_json: bool) -> None:
    """Remove every item of QUEUE."""
    with place.queue(queue) as (database, found):
        if not yes:
            there = f"{counted(found.size(database), 'item')} of {queue!r}"
            raise Refused(f"clear would remove {there}: confirm with --yes")
        removed = remove_items(database, place, found)
    tell(signals, f"{removed} removed", {"queue": queue, "removed": removed}, as_json)


def remove_items(database: Database, place: Place, queue: "Queue") -> int:
    """Clear a plain queue, and return the number of its items. A receipt keeps the number: after an unknown
    result, a retry would find none."""

    def body(tr: Transaction) -> int:
        removed = queue.size(tr)
        queue.clear(tr)
        return removed

    return run_once(database, RootKeys(place.root), body)


def _check_unique(options: dict[str, Any], data: Sequence[str]) -> None:
    if options["unique"] is not None and len(data) != 1:
        raise click.UsageError("--unique is for one DATA")
    given = [
        f"--{_FLAGS.get(name, name)}" for name in ("scope", "on_conflict", "debounce_max") if options[name]
    ]
    if options["unique"] is None and given:
        raise click.UsageError(f"{', '.join(given)} {'needs' if len(given) == 1 else 'need'} --unique")
    if options["on_conflict"] == OnConflict.DEBOUNCE and options["debounce_max"] is None:
        raise click.UsageError("--on-conflict debounce needs --debounce-max")


def _sink(
    signals: Signals,
    place: Place,
    database: Database,
    name: str,
    kind: str,
    options: dict[str, Any],
    as_json: bool,
) -> tuple[Sink, int]:
    """Return the function that puts values, and the largest number of values for one transaction."""
    if kind == PLAIN:
        _refuse_task_options(name, options, as_json)
        plain = recipe.queue.Queue.named(database, name, root=place.root)
        return lambda values: plain.enqueue_many(database, values), limits.BATCH_ITEMS_MAX
    return _task_sink(signals, database, place.tasks_in(database, name), options, as_json)


_FLAGS = {
    "pri": "priority",
    "headers": "header",
    "limits": "limit",
    "limit_key": "limit-key",
    "result_ttl": "result-ttl",
    "on_conflict": "on-conflict",
    "debounce_max": "debounce-max",
}
"""Flags of options that have another name in Python."""


def _refuse_task_options(name: str, options: dict[str, Any], as_json: bool) -> None:
    given = [f"--{_FLAGS.get(option, option)}" for option in options]
    given += ["--json"] if as_json else []
    if given:
        wanted = f"for task queues, and {name!r} is a plain queue: `fdbqueue create` makes another one"
        raise click.UsageError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} {wanted}")


def _task_sink(
    signals: Signals, database: Database, queue: "TaskQueue", options: dict[str, Any], as_json: bool
) -> tuple[Sink, int]:
    def put_some(values: Sequence[Any]) -> None:
        if "unique" in options or "after" in options:
            tasks = [queue.put(database, value, **options) for value in values]
        else:
            tasks = queue.put_many(database, values, **options)
        if as_json:
            out = stdout_of(signals)
            for task in tasks:
                out.print(line_of({**task_row(task), "existed": task.existed}))

    # A batch needs room for all its tasks at once: a bounded queue may never have it.
    return put_some, 1 if queue.options["capacity"] else limits.BATCH_ITEMS_MAX
