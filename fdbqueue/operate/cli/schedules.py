"""`fdbqueue schedule`: tasks that are put at given times."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.operate.cli.group import cli, help_without_command, in_a_place, json_option, queue_names
from fdbqueue.operate.cli.paging import paged
from fdbqueue.operate.cli.parameters import SPAN, OptionName, Scope, Seconds, SecondsRange
from fdbqueue.operate.cli.put_values import header_of, key_in, values_of, with_limit_key
from fdbqueue.operate.cli.rows import schedule_row, task_row
from fdbqueue.operate.cli.session import CREATE_TASKS, Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, span, tell
from fdbqueue.operate.cli.values import line_of
from fdbqueue.tasks.schedules.records import MISSED, PutOptions
from fdbqueue.tasks.schedules.schedule import Schedule, fire_due, list_schedules
from fdbqueue.tasks.schedules.store import IF_EXISTS
from fdbqueue.tasks.unique import OnConflict

EVERY = SecondsRange(min=limits.SCHEDULE_EVERY_MIN_S)
TIMES = click.IntRange(1, limits.SCHEDULE_TIMES_MAX)
_PUT_OPTIONS = (
    click.option("--data", metavar="DATA", help="the data of its tasks, as JSON or text [null]"),
    click.option("--text", is_flag=True, help="put DATA as text, never as JSON"),
    click.option("--timezone", metavar="ZONE", help="of the expression, such as Europe/Rome [UTC]"),
    click.option("--missed", type=click.Choice(MISSED), help="tasks for missed due times [once]"),
    click.option("--priority", "pri", type=int, metavar="N", help="the lowest is taken first"),
    click.option("--delay", type=Seconds(), metavar="S", help="ready S seconds after its put"),
    click.option("--ttl", type=SPAN, metavar="S", help="a task lives S seconds"),
    click.option("--ttr", type=SPAN, metavar="S", help="each lease lasts S seconds"),
    click.option("--key", metavar="KEY", help="the task key, as JSON or text"),
    click.option("--cost", type=int, metavar="N", help="each counts as N tasks of its key"),
    click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="a header; repeatable"),
    click.option("--result-ttl", type=SPAN, metavar="S", help="results are kept for S seconds"),
    click.option("--limit", "limits", multiple=True, metavar="NAME", help="a limit; repeatable"),
    click.option(
        "--limit-key",
        "limit_key",
        type=(str, str),
        multiple=True,
        metavar="NAME KEY",
        help="one more limit, for KEY",
    ),
    click.option("--unique", metavar="KEY", help="put none if a task has KEY, as JSON or text"),
    click.option("--scope", type=Scope(), metavar="SCOPE", help="of KEY: queued, unfinished or seconds"),
    click.option("--on-conflict", type=click.Choice([one.value for one in OnConflict]), help="[skip]"),
    click.option("--debounce-max", type=SPAN, metavar="S", help="of debounce: ready S seconds after a put"),
)
_OTHERWISE = {"pri": "priority", "headers": "header", "limits": "limit"}
WITHOUT = {_OTHERWISE.get(name, name.replace("_", "-")): name for name in sorted(PutOptions.named())}
"""The options of a put by their names here, without dashes, that a change takes back."""
schedule_argument = click.argument("name", metavar="NAME")


def put_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the tasks of a schedule."""
    for option in reversed(_PUT_OPTIONS):
        command = option(command)
    return command


@cli.group("schedule", invoke_without_command=True)
@click.pass_context
def schedule(context: click.Context) -> None:
    """Put tasks at given times, by cron expressions or every S seconds.

    Any worker or other process that uses the database fires them, each due time once.
    """
    help_without_command(context)


@schedule.command()
@schedule_argument
@click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
@click.argument("expression", required=False, metavar="[EXPRESSION]")
@click.option("--every", type=EVERY, metavar="S", help="every S seconds, in place of EXPRESSION")
@put_options
@click.option("--paused", is_flag=True, help="put nothing until `resume`")
@click.option("--if-exists", type=click.Choice(IF_EXISTS), default=IF_EXISTS[0], help="[refuse]")
@json_option
@in_a_place
@click.pass_obj
def create(
    signals: Signals, /, place: Place, name: str, queue: str, as_json: bool, text: bool, **options: Any
) -> None:
    """Create the schedule NAME, which puts tasks into QUEUE.

    EXPRESSION is one word with the five fields of cron, "0 3 * * *", or six with the seconds first. An option
    of tasks that the kind of QUEUE does not have is refused. `--if-exists change` gives a schedule of that
    name these values.
    """
    given = _given(options, text)
    with _place(place) as database, _queue(place, database, queue):
        made = Schedule.create(database, name, queue=queue, root=place.root, **given)
        _tell(signals, database, made, "is there", as_json)


@schedule.command()
@schedule_argument
@click.option("--expression", metavar="EXPRESSION", help="the five fields of cron, as one word")
@click.option("--every", type=EVERY, metavar="S", help="every S seconds")
@click.option("--queue", metavar="QUEUE", shell_complete=queue_names, help="put its tasks there")
@put_options
@click.option(
    "--without",
    type=OptionName(sorted(WITHOUT)),
    multiple=True,
    help="take back an option; repeatable",
)
@json_option
@in_a_place
@click.pass_obj
def change(
    signals: Signals,
    /,
    place: Place,
    name: str,
    as_json: bool,
    text: bool,
    without: tuple[str, ...],
    **options: Any,
) -> None:
    """Give the schedule NAME other values; the rest stays.

    With other times, the next due time is the first one after now.
    """
    given = {**dict.fromkeys(WITHOUT[option] for option in without), **_given(options, text)}
    with _opened(place, name) as (database, found), _queue(place, database, given.get("queue")):
        found.change(database, **given)
        _tell(signals, database, found, "is changed", as_json)


@schedule.command("list")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]")
@json_option
@in_a_place
@click.pass_obj
def list_(signals: Signals, place: Place, count: int, as_json: bool) -> None:
    """List the schedules.

    Columns: name, times, time zone, queue, missed, next due time, in, tasks put, state: paused, or the error
    of the last try.
    """
    with place.database() as database:
        now = database.runtime.now()
        found = paged(
            lambda limit, after: list_schedules(database, limit, after=after or "", root=place.root),
            count,
            f"more schedules follow the first {count}",
        )
        rows = [_row(schedule_row(one), now) for one in found]
    show(signals, rows, LIST_COLUMNS, as_json)


@schedule.command("show")
@schedule_argument
@json_option
@in_a_place
@click.pass_obj
def show_(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Show the schedule NAME, one value a line."""
    with _opened(place, name) as (database, found):
        row = _row(schedule_row(found.status(database)), database.runtime.now())
    if as_json:
        show(signals, [row], {}, as_json)
        return
    shown = {**row, **{time: _time(row[time]) for time in TIMES_SHOWN}}
    lines = [{"what": what, "value": _cell(value)} for what, value in shown.items()]
    show(signals, lines, {"what": field("what"), "value": field("value")}, as_json)


@schedule.command()
@schedule_argument
@json_option
@in_a_place
@click.pass_obj
def pause(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Let the schedule NAME put no task until `resume`. Its due times meanwhile are not made up for."""
    with _opened(place, name) as (database, found):
        found.pause(database)
        _tell(signals, database, found, "is paused", as_json)


@schedule.command()
@schedule_argument
@json_option
@in_a_place
@click.pass_obj
def resume(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Let the schedule NAME go on with its first due time after now."""
    with _opened(place, name) as (database, found):
        found.resume(database)
        _tell(signals, database, found, "is resumed", as_json)


@schedule.command()
@schedule_argument
@json_option
@in_a_place
@click.pass_obj
def run(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Put a task of the schedule NAME now. Its due times stay as they are."""
    with _opened(place, name) as (database, found):
        task = found.run(database)
    tell(signals, f"{task.id} put", task_row(task), as_json)


@schedule.command("next")
@schedule_argument
@click.option("-n", "count", type=TIMES, default=5, metavar="N", help="N due times [5]")
@json_option
@in_a_place
@click.pass_obj
def next_(signals: Signals, place: Place, name: str, count: int, as_json: bool) -> None:
    """Print the next due times of the schedule NAME, in its time zone."""
    with _opened(place, name) as (database, found):
        now = database.runtime.now()
        times = found.next_times(database, count)
    rows = [{"at": at.isoformat(), "due": at.timestamp(), "in_s": at.timestamp() - now} for at in times]
    show(signals, rows, {"at": field("at"), "in": lambda row: span(row["in_s"])}, as_json)


@schedule.command()
@schedule_argument
@json_option
@in_a_place
@click.pass_obj
def delete(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Remove the schedule NAME, also one that cannot be read. Its tasks stay."""
    with place.database() as database:
        Schedule(database, name, place.registry).delete(database)
    tell(signals, f"{name!r} is gone", {"name": name, "deleted": True}, as_json)


@schedule.command()
@json_option
@in_a_place
@click.pass_obj
def fire(signals: Signals, place: Place, as_json: bool) -> None:
    """Put the tasks of all schedules that are due, once.

    Workers do so by themselves: this is for a database without any, and for tests.
    """
    with _place(place) as database:
        put = fire_due(database, root=place.root)
    tell(signals, f"{put} put", {"put": put}, as_json)


@contextmanager
def _place(place: Place) -> Iterator[Database]:
    """Open the database. Raises CommandError for a package that is not installed."""
    try:
        with place.database() as database:
            yield database
    except ModuleNotFoundError as error:
        raise CommandError(str(error)) from None


@contextmanager
def _opened(place: Place, name: str) -> Iterator[tuple[Database, Schedule]]:
    with _place(place) as database:
        yield database, Schedule.open(database, name, root=place.root)


@contextmanager
def _queue(place: Place, database: Database, queue: str | None) -> Iterator[None]:
    """Tell a missing queue with the names that are like it."""
    try:
        yield
    except QueueNotFound:
        raise place.missing(database, queue or "", CREATE_TASKS) from None


def _given(options: dict[str, Any], text: bool) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "data" in given:
        given["data"] = values_of((given["data"],), text)[0]
    for name in {"key", "unique"} & set(given):
        given[name] = key_in(given[name], text)
    if "headers" in given:
        given["headers"] = dict(map(header_of, given["headers"]))
    with_limit_key(given, text)
    return given


def _tell(signals: Signals, database: Database, found: Schedule, done: str, as_json: bool) -> None:
    row = _row(schedule_row(found.status(database)), database.runtime.now())
    due = "" if row["due"] is None else f": due at {_time(row['due'])}, in {span(row['in_s'])}"
    tell(signals, f"the schedule {found.name!r} {done}{due}", row, as_json)


def _row(row: dict[str, Any], now: float) -> Row:
    return {**row, "in_s": None if row["due"] is None else row["due"] - now}


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else line_of(value).decode().strip()


def _times(row: Row) -> str:
    return str(row["expression"] or (f"every {row['every']:g} s" if row["every"] else ""))


def _state(row: Row) -> str:
    return str(row["error"] or ("paused" if row["paused"] else ""))


TIMES_SHOWN = ("created", "due", "last_due", "last_fired", "next_try")
LIST_COLUMNS: Columns = {
    "name": field("name"),
    "times": _times,
    "time zone": field("timezone"),
    "queue": field("queue"),
    "missed": field("missed"),
    "due": lambda row: _time(row["due"]),
    "in": lambda row: span(row["in_s"]),
    "put": field("fired"),
    "state": _state,
}
