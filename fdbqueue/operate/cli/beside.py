"""What stands beside queues under a root: `fdbqueue limit`, `fdbqueue group` and `fdbqueue schedule`.

Limits of the tasks that run, or start, in all queues that share them; groups of tasks, their progress, and
their ends; tasks that are put at given times.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.limits import SLOTS_MAX
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import CommandError, Refused
from fdbqueue.operate.cli.frame import (
    SPAN,
    WAIT,
    Function,
    Here,
    OptionName,
    SecondsRange,
    command,
    first_option,
    flag_of,
    given_of,
    group,
    key_in,
    queue_names,
    schedule_options,
    values_of,
    yes_option,
)
from fdbqueue.operate.cli.redacting import require_open, seen, seen_text
from fdbqueue.operate.cli.session import CREATE_DATABASE
from fdbqueue.operate.cli.show import (
    Cell,
    Row,
    cell_of,
    columns,
    moment,
    moment_in,
    paged,
    span,
    task_row,
    time_in,
    told_data,
)
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.tasks.firing import MISSED, ScheduleStatus
from fdbqueue.tasks.groups import Group, GroupProgress, list_groups
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.limits.shown import LimitKey
from fdbqueue.tasks.options import PutOptions
from fdbqueue.tasks.schedules import IF_EXISTS, Schedule, fire_due, list_schedules

name_argument = click.argument("name", metavar="NAME")


@group("limit")
def limit() -> None:
    """Set, show and delete limits of tasks, which queues share.

    `fdbqueue create QUEUE --limit NAME` makes a queue under a limit. A change holds at once, for all queues.
    """


@command(limit, name_argument, name="set")
@click.option("--slots", type=click.IntRange(1, SLOTS_MAX), metavar="N", help="N tasks run at a time")
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="N tasks start in --per seconds")
@click.option("--per", type=SPAN, metavar="S", help="the seconds of --rate")
@click.option(
    "--burst", type=click.IntRange(min=1), metavar="N", help="at most N at once [a tenth of --rate]"
)
@click.option("--per-key", is_flag=True, help="for each key that tasks name")
def set_limit(here: Here, name: str, **numbers: Any) -> None:
    """Create the limit NAME, or change it: --slots N, or --rate N --per S, or both.

    With --per-key, each key that tasks name has these numbers for itself. Tasks that run go on. With fewer
    slots than tasks that run, no task starts until fewer run. A limit cannot get slots, nor be without them,
    later; a rate beside slots may come and go.
    """
    if numbers["slots"] is None and numbers["rate"] is None:
        raise click.UsageError("give --slots N, or --rate N with --per S, or both")

    def change(database: Database) -> Limit:
        return Limit.set(database, name, **numbers, root=here.root)

    with here.made(change, create=True, cure=CREATE_DATABASE) as database:
        found = change(database)
    here.tell(f"the limit {name!r} allows {_told(found)}", asdict(found))


@command(limit, name="list")
def list_of_limits(here: Here) -> None:
    """List the limits, also those that cannot be read: they limit nothing.

    Columns: name, the tasks that it allows, slots in use, tasks that may start now.
    """
    with here.database() as database:
        here.show(map(_limit_row, Limit.list(database, root=here.root)), LIMIT_COLUMNS)


@command(limit, name_argument, name="show")
def show_limit(here: Here, name: str) -> None:
    """Show the limit NAME and the first tasks that hold its slots.

    Columns: id, queue, session. With --json, one object has the limit and these tasks.
    """
    with here.database() as database:
        found = Limit.open(database, name, root=here.root)
    now = f"{found.free} may start now"
    if found.per_key:
        now = f"tasks hold {counted(found.used, 'slot')}; `fdbqueue limit keys {name}` lists the keys"
    _show_holders(here, found, f"{name!r} allows {_told(found)}; {now}")


def _show_holders(here: Here, found: Limit | LimitKey, told: str) -> None:
    here.tell(told, asdict(found))
    if not here.as_json:
        here.show(map(asdict, found.holders), HOLDER_COLUMNS)


@command(limit, name_argument)
@click.option(
    "--key", metavar="KEY", help="only KEY, as JSON or text, with the first tasks that hold its slots"
)
@click.option("--text", is_flag=True, help="take KEY as text, never as JSON")
@first_option
def keys(here: Here, name: str, key: str | None, text: bool, count: int) -> None:
    """List the keys of the limit NAME whose tasks hold slots, or have used tokens.

    Columns: key, slots in use, tasks that may start now. With --key: id, queue, session of its tasks; with
    --json, one object has the key and these tasks.
    """
    with here.database() as database:
        if key is not None:
            require_open("--key", "limits")
            one = Limit.open_key(database, name, key_in(key, text), root=here.root)
            _show_holders(here, one, f"the key {one.key!r} uses {one.used}; {one.free} may start now")
            return
        read = partial(Limit.keys, database, name, root=here.root)
        rows = [*map(_limit_row, paged(read, count, f"more keys follow the first {count}"))]
    here.show(rows, columns("key", "used", "free"))


@command(limit, name_argument, name="delete")
def delete_limit(here: Here, name: str) -> None:
    """Delete the limit NAME. Refused while a task holds a slot of it."""
    with here.database() as database:
        Limit.delete(database, name, root=here.root)
    here.tell(f"the limit {name!r} is gone", {"name": name, "deleted": True})


def _limit_row(found: Limit | LimitKey) -> Row:
    """A limit or a key in a list: the holders are those of `show`, and of `keys --key`."""
    row = {name: value for name, value in asdict(found).items() if name != "holders"}
    return {name: seen("limits", value) if name == "key" else value for name, value in row.items()}


def _told(found: Limit) -> str:
    parts = [f"{counted(found.slots, 'task')} at a time"] if found.slots is not None else []
    if found.rate is not None:
        parts.append(f"{counted(found.rate, 'start')} in {found.per:g} s, at most {found.burst} at once")
    return "; ".join(parts) + (" for each key" if found.per_key else "")


def allowed(row: Mapping[str, Any], per_s: float | None) -> str:
    """Return the cell for the tasks of a limit: at a time, or a rate."""
    parts = [f"{row['slots']} at a time"] if row["slots"] is not None else []
    if row["rate"] is not None:
        parts.append(f"{row['rate']} in {per_s:g} s, burst {row['burst']}")
    return "; ".join(parts) + (" for each key" if row["per_key"] else "")


def _if_read(name: str) -> Cell:
    """The number of that name; empty for a limit that cannot be read."""
    return lambda row: f"{row[name]}" if row["error"] is None else ""


LIMIT_COLUMNS = columns(
    "name",
    allows=lambda row: "unreadable" if row["error"] is not None else allowed(row, row["per"]),
    used=_if_read("used"),
    free=_if_read("free"),
)
HOLDER_COLUMNS = columns(id="task", queue="queue", session="session")


group_argument = click.argument("group", metavar="GROUP")


@group("group")
def groups() -> None:
    """Count tasks together, wait for all of them, and start a task when they have ended.

    GROUP is the id that `group create` prints; `put --group` puts its members.
    """


@command(groups, name="create")
@click.option("--then", nargs=2, metavar="QUEUE DATA", help="start this task when the group has ended")
@click.option("--text", is_flag=True, help="put DATA as text, never as JSON")
@click.option("--skip-buried", is_flag=True, help="do not wait for buried members: they have failed")
def create_group(here: Here, then: tuple[str, str] | None, text: bool, skip_buried: bool) -> None:
    """Make an open group, and print its id."""
    out = here.out()
    with here.database() as database:
        put = None if then is None else (here.tasks_in(database, then[0]), values_of(then[1:], text)[0])
        made = Group.create(database, then=put, wait_for_buried=not skip_buried, root=here.root)
        found = made.progress(database)
    out.print(line_of(_group_row(found)) if here.as_json else f"{made.id}\n".encode())


@command(groups, first_option, name="list")
def list_of_groups(here: Here, count: int) -> None:
    """List groups, in the order of their ids: those that have not ended, and those that ended in the last
    day.

    Columns: group, state, total, done, failed, left, buried, the task that starts when it ends.
    """
    with here.database() as database:
        read = partial(list_groups, database, root=here.root)
        found = paged(read, count, f"more groups follow the first {count}")
        here.show(map(_group_row, found), GROUP_COLUMNS)


@command(groups, group_argument, name="show")
def show_group(here: Here, group: str) -> None:
    """Show the progress of GROUP.

    Columns: group, state, total, done, failed, left, buried, the task that starts when it ends.
    """
    with here.database() as database:
        found = Group(group, root=here.root).progress(database)
    here.show([_group_row(found)], GROUP_COLUMNS)


@command(groups, group_argument)
@click.option("--timeout", type=WAIT, metavar="S", help="wait S seconds [no bound]")
def wait(here: Here, group: str, timeout: float | None) -> None:
    """Wait until GROUP has ended. Status 1: it has not within --timeout."""
    with here.database() as database:
        found = Group(group, root=here.root).wait(database, timeout)
    here.tell(f"{group} has ended: {found.done} done, {found.failed} failed", _group_row(found))


@command(groups, group_argument)
def close(here: Here, group: str) -> None:
    """Let GROUP take no more members. It ends when none is left."""
    _change(here, group, "closed")


@command(groups, group_argument, yes_option)
def cancel(here: Here, group: str, yes: bool) -> None:
    """Cancel all tasks of GROUP, and the one that starts when it ends."""
    if not yes:
        with here.database() as database:
            left = Group(group, root=here.root).progress(database).left
        raise Refused(f"cancel would end {counted(left, 'task')} of {group}: confirm with --yes")
    _change(here, group, "cancelled")


def _change(here: Here, group: str, told: str) -> None:
    with here.database() as database:
        found = Group(group, root=here.root)
        (found.cancel if told == "cancelled" else found.close)(database)
        progress = found.progress(database)
    here.tell(f"{group} is {told}: {counted(progress.left, 'task')} left", _group_row(progress))


def _group_row(found: GroupProgress) -> Row:
    state = "cancelled" if found.cancelled else "open" if found.open else "closed"
    return {**asdict(found), "state": state if found.ended is None else "ended"}


GROUP_COLUMNS = columns(
    group="id",
    **{name: name for name in ("state", "total", "done", "failed", "left", "buried")},
    then=lambda row: "" if row["then"] is None else f"{row['then_queue']} {row['then']}",
)


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


@command(schedule, schedule_argument, name="create")
@click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
@click.argument("expression", required=False, metavar="[EXPRESSION]")
@click.option("--every", type=EVERY, metavar="S", help="every S seconds, in place of EXPRESSION")
@task_options
@click.option("--paused", is_flag=True, help="put nothing until `resume`")
@click.option("--if-exists", type=click.Choice(IF_EXISTS), default=IF_EXISTS[0], help="[refuse]")
def create_schedule(here: Here, name: str, queue: str, text: bool, **options: Any) -> None:
    """Create the schedule NAME, which puts tasks into QUEUE.

    EXPRESSION is one word with the five fields of cron, "0 3 * * *", or six with the seconds first. An option
    of tasks that the kind of QUEUE does not have is refused. `--if-exists change` gives a schedule of that
    name these values.
    """
    given = given_of(options, text)
    with _database(here) as database:
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
    with _opened(here, name) as (database, found):
        found.change(database, **given)
        _tell(here, database, found, "is changed")


@command(schedule, first_option, name="list")
def list_of_schedules(here: Here, count: int) -> None:
    """List the schedules.

    Columns: name, times, time zone, queue, missed, next due time, in, tasks put, state: paused, or the error
    of the last try.
    """
    with here.database() as database:
        now = database.runtime.now()
        read = partial(list_schedules, database, root=here.root)
        found = paged(read, count, f"more schedules follow the first {count}")
        rows = [_schedule_row(one, now) for one in found]
    here.show(rows, SCHEDULE_COLUMNS)


@command(schedule, schedule_argument, name="show")
def show_schedule(here: Here, name: str) -> None:
    """Show the schedule NAME, one value a line."""
    with _opened(here, name) as (database, found):
        row = _schedule_row(found.status(database), database.runtime.now())
    if here.as_json:
        here.print(row)
        return
    shown = {**row, **{time: moment(row[time]) for time in TIMES_SHOWN}}
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
        queue = here.tasks_in(database, found.status(database).queue)
        row = task_row(task, queue.options)
    here.tell(f"{task.id} put", row)


@command(schedule, schedule_argument, name="next")
@click.option("-n", "count", type=TIMES, default=5, metavar="N", help="N due times [5]")
def next_(here: Here, name: str, count: int) -> None:
    """Print the next due times of the schedule NAME, in its time zone."""
    with _opened(here, name) as (database, found):
        now = database.runtime.now()
        times = found.next_times(database, count)
    rows = [{"at": at.isoformat(), "due": at.timestamp(), "in_s": at.timestamp() - now} for at in times]
    here.show(rows, columns("at", **{"in": time_in("in_s")}))


@command(schedule, schedule_argument, name="delete")
def delete_schedule(here: Here, name: str) -> None:
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
        here.counts(put)
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


def _tell(here: Here, database: Database, found: Schedule, done: str) -> None:
    row = _schedule_row(found.status(database), database.runtime.now())
    due = "" if row["due"] is None else f": due at {moment(row['due'])}, in {span(row['in_s'])}"
    here.tell(f"the schedule {found.name!r} {done}{due}", row)


def _schedule_row(found: ScheduleStatus, now: float) -> Row:
    """Return a schedule as a row with the names of its attributes, and the time until it is due."""
    in_s = None if found.due is None else found.due - now
    options = {
        name: seen(name, value) if name in ("headers", "key", "unique") else value
        for name, value in found.options.items()
    }
    if isinstance(named := options.get("limits"), Mapping):
        options["limits"] = {name: key and seen("limits", key) for name, key in named.items()}
    told = {"data": told_data(seen("data", found.data)), "error": seen_text(found.error)}
    return {**asdict(found), **told, "options": options, "in_s": in_s}


def _times(row: Row) -> str:
    return str(row["expression"] or (f"every {row['every']:g} s" if row["every"] else ""))


TIMES_SHOWN = ("created", "due", "last_due", "last_fired", "next_try")
SCHEDULE_COLUMNS = {
    **columns("name", times=_times, **{"time zone": "timezone"}),
    **columns("queue", "missed", due=moment_in("due"), **{"in": time_in("in_s")}),
    **columns(put="fired", state=lambda row: str(row["error"] or ("paused" if row["paused"] else ""))),
}
