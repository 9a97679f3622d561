"""`fdbqueue schedule`: tasks that are put at given times."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.operate.cli.group import Here, command, first_option, group, queue_names
from fdbqueue.operate.cli.parameters import (
    Function,
    OptionName,
    SecondsRange,
    flag_of,
    given_of,
    schedule_options,
)
from fdbqueue.operate.cli.rows import task_row, told_data
from fdbqueue.operate.cli.session import CREATE_TASKS
from fdbqueue.operate.cli.show import Row, cell_of, columns, paged, span, time_in
from fdbqueue.tasks.firing import MISSED, ScheduleStatus
from fdbqueue.tasks.options import PutOptions
from fdbqueue.tasks.schedules import IF_EXISTS, Schedule, fire_due, list_schedules

EVERY = SecondsRange(min=limits.SCHEDULE_EVERY_MIN_S)
TIMES = click.IntRange(1, limits.SCHEDULE_TIMES_MAX)
WITHOUT = {flag_of(name).removeprefix("--"): name for name in sorted(PutOptions.named())}
"""The options of a put by their names here, without dashes, that a change takes back."""
schedule_argument = click.argument("name", metavar="NAME")


def task_options(function: Function) -> Function:
    """Give a command the options of the tasks of a schedule."""
    for option in (
        schedule_options,
        click.option("--missed", type=click.Choice(MISSED), help="tasks for missed due times [once]"),
        click.option("--timezone", metavar="ZONE", help="of the expression, such as Europe/Rome [UTC]"),
        click.option("--text", is_flag=True, help="put DATA as text, never as JSON"),
        click.option("--data", metavar="DATA", help="the data of its tasks, as JSON or text [null]"),
    ):
        function = option(function)
    return function


@group("schedule")
def schedule() -> None:
    """Put tasks at given times, by cron expressions or every S seconds.

    Any worker or other process that uses the database fires them, each due time once.
    """


@command(schedule, schedule_argument)
@click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
@click.argument("expression", required=False, metavar="[EXPRESSION]")
@click.option("--every", type=EVERY, metavar="S", help="every S seconds, in place of EXPRESSION")
@task_options
@click.option("--paused", is_flag=True, help="put nothing until `resume`")
@click.option("--if-exists", type=click.Choice(IF_EXISTS), default=IF_EXISTS[0], help="[refuse]")
def create(here: Here, name: str, queue: str, text: bool, **options: Any) -> None:
    """Create the schedule NAME, which puts tasks into QUEUE.

    EXPRESSION is one word with the five fields of cron, "0 3 * * *", or six with the seconds first. An option
    of tasks that the kind of QUEUE does not have is refused. `--if-exists change` gives a schedule of that
    name these values.
    """
    given = given_of(options, text)
    with _database(here) as database, _naming(here, database, queue):
        made = Schedule.create(database, name, queue=queue, root=here.root, **given)
        _tell(here, database, made, "is there")


@command(schedule, schedule_argument)
@click.option("--expression", metavar="EXPRESSION", help="the five fields of cron, as one word")
@click.option("--every", type=EVERY, metavar="S", help="every S seconds")
@click.option("--queue", metavar="QUEUE", shell_complete=queue_names, help="put its tasks there")
@task_options
@click.option(
    "--without", type=OptionName(sorted(WITHOUT)), multiple=True, help="take back an option; repeatable"
)
def change(here: Here, name: str, text: bool, without: tuple[str, ...], **options: Any) -> None:
    """Give the schedule NAME other values; the rest stays.

    With other times, the next due time is the first one after now.
    """
    given = {**dict.fromkeys(WITHOUT[option] for option in without), **given_of(options, text)}
    with _opened(here, name) as (database, found), _naming(here, database, given.get("queue")):
        found.change(database, **given)
        _tell(here, database, found, "is changed")


@command(schedule, first_option, name="list")
def list_(here: Here, count: int) -> None:
    """List the schedules.

    Columns: name, times, time zone, queue, missed, next due time, in, tasks put, state: paused, or the error
    of the last try.
    """
    with here.database() as database:
        now = database.runtime.now()
        found = paged(
            lambda limit, after: list_schedules(database, limit, after=after or "", root=here.root),
            count,
            f"more schedules follow the first {count}",
        )
        rows = [_row(one, now) for one in found]
    here.show(rows, LIST_COLUMNS)


@command(schedule, schedule_argument, name="show")
def show_(here: Here, name: str) -> None:
    """Show the schedule NAME, one value a line."""
    with _opened(here, name) as (database, found):
        row = _row(found.status(database), database.runtime.now())
    if here.as_json:
        here.print(row)
        return
    shown = {**row, **{time: _time(row[time]) for time in TIMES_SHOWN}}
    lines = [{"what": what, "value": cell_of(value)} for what, value in shown.items()]
    here.show(lines, columns("what", "value"))


@command(schedule, schedule_argument)
def pause(here: Here, name: str) -> None:
    """Let the schedule NAME put no task until `resume`. Its due times meanwhile are not made up for."""
    with _opened(here, name) as (database, found):
        found.pause(database)
        _tell(here, database, found, "is paused")


@command(schedule, schedule_argument)
def resume(here: Here, name: str) -> None:
    """Let the schedule NAME go on with its first due time after now."""
    with _opened(here, name) as (database, found):
        found.resume(database)
        _tell(here, database, found, "is resumed")


@command(schedule, schedule_argument)
def run(here: Here, name: str) -> None:
    """Put a task of the schedule NAME now. Its due times stay as they are."""
    with _opened(here, name) as (database, found):
        task = found.run(database)
    here.tell(f"{task.id} put", task_row(task))


@command(schedule, schedule_argument, name="next")
@click.option("-n", "count", type=TIMES, default=5, metavar="N", help="N due times [5]")
def next_(here: Here, name: str, count: int) -> None:
    """Print the next due times of the schedule NAME, in its time zone."""
    with _opened(here, name) as (database, found):
        now = database.runtime.now()
        times = found.next_times(database, count)
    rows = [{"at": at.isoformat(), "due": at.timestamp(), "in_s": at.timestamp() - now} for at in times]
    here.show(rows, columns("at", **{"in": time_in("in_s")}))


@command(schedule, schedule_argument)
def delete(here: Here, name: str) -> None:
    """Remove the schedule NAME, also one that cannot be read. Its tasks stay."""
    with here.database() as database:
        Schedule(database, name, here.registry).delete(database)
    here.tell(f"{name!r} is gone", {"name": name, "deleted": True})


@command(schedule)
def fire(here: Here) -> None:
    """Put the tasks of all schedules that are due, once.

    Workers do so by themselves: this is for a database without any, and for tests.
    """
    with _database(here) as database:
        put = fire_due(database, root=here.root)
    here.tell(f"{put} put", {"put": put})


@contextmanager
def _database(here: Here) -> Iterator[Database]:
    """Open the database. Raises CommandError for a package that is not installed."""
    try:
        with here.database() as database:
            yield database
    except ModuleNotFoundError as error:
        raise CommandError(str(error)) from None


@contextmanager
def _opened(here: Here, name: str) -> Iterator[tuple[Database, Schedule]]:
    with _database(here) as database:
        yield database, Schedule.open(database, name, root=here.root)


@contextmanager
def _naming(here: Here, database: Database, queue: str | None) -> Iterator[None]:
    """Tell a missing queue with the names that are like it."""
    try:
        yield
    except QueueNotFound:
        raise here.missing(database, queue or "", CREATE_TASKS) from None


def _tell(here: Here, database: Database, found: Schedule, done: str) -> None:
    row = _row(found.status(database), database.runtime.now())
    due = "" if row["due"] is None else f": due at {_time(row['due'])}, in {span(row['in_s'])}"
    here.tell(f"the schedule {found.name!r} {done}{due}", row)


def _row(found: ScheduleStatus, now: float) -> Row:
    """Return a schedule as a row with the names of its attributes, and the time until it is due."""
    in_s = None if found.due is None else found.due - now
    return {**asdict(found), "data": told_data(found.data), "in_s": in_s}


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _times(row: Row) -> str:
    return str(row["expression"] or (f"every {row['every']:g} s" if row["every"] else ""))


TIMES_SHOWN = ("created", "due", "last_due", "last_fired", "next_try")
LIST_COLUMNS = {
    **columns("name", times=_times, **{"time zone": "timezone"}),
    **columns("queue", "missed", due=lambda row: _time(row["due"]), **{"in": time_in("in_s")}),
    **columns(put="fired", state=lambda row: str(row["error"] or ("paused" if row["paused"] else ""))),
}
