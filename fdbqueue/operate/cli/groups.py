"""`fdbqueue group`: groups of tasks, their progress, and their ends."""

from dataclasses import asdict
from functools import partial

import click

from fdbqueue.core.database import Database
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import cli, help_without_command, in_a_place, json_option, stdout_of
from fdbqueue.operate.cli.paging import paged
from fdbqueue.operate.cli.parameters import WAIT
from fdbqueue.operate.cli.put_values import values_of
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, tell
from fdbqueue.operate.cli.values import line_of
from fdbqueue.tasks.groups.group import Group, ThenPut, list_groups
from fdbqueue.tasks.groups.progress import GroupProgress

group_argument = click.argument("group", metavar="GROUP")


@cli.group("group", invoke_without_command=True)
@click.pass_context
def groups(context: click.Context) -> None:
    """Count tasks together, wait for all of them, and start a task when they have ended.

    GROUP is the id that `group create` prints; `put --group` puts its members.
    """
    help_without_command(context)


@groups.command()
@click.option("--then", nargs=2, metavar="QUEUE DATA", help="start this task when the group has ended")
@click.option("--text", is_flag=True, help="put DATA as text, never as JSON")
@click.option("--skip-buried", is_flag=True, help="do not wait for buried members: they have failed")
@json_option
@in_a_place
@click.pass_obj
def create(
    signals: Signals,
    place: Place,
    then: tuple[str, str] | None,
    text: bool,
    skip_buried: bool,
    as_json: bool,
) -> None:
    """Make an open group, and print its id."""
    out = stdout_of(signals)
    with place.database() as database:
        put = None if then is None else _then(place, database, *then, text)
        made = Group.create(database, then=put, wait_for_buried=not skip_buried, root=place.root)
        found = made.progress(database)
    out.print(line_of(_row(found)) if as_json else f"{made.id}\n".encode())


def _then(place: Place, database: Database, queue: str, data: str, text: bool) -> ThenPut:
    return place.tasks_in(database, queue), values_of((data,), text)[0]


@groups.command("list")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]")
@json_option
@in_a_place
@click.pass_obj
def list_(signals: Signals, place: Place, count: int, as_json: bool) -> None:
    """List groups, in the order of their ids: those that have not ended, and those that ended in the last
    day.

    Columns: group, state, total, done, failed, left, buried, the task that starts when it ends.
    """
    with place.database() as database:
        read = partial(list_groups, database, root=place.root)
        found = paged(read, count, f"more groups follow the first {count}")
        show(signals, map(_row, found), COLUMNS, as_json)


@groups.command("show")
@group_argument
@json_option
@in_a_place
@click.pass_obj
def show_(signals: Signals, place: Place, group: str, as_json: bool) -> None:
    """Show the progress of GROUP.

    Columns: group, state, total, done, failed, left, buried, the task that starts when it ends.
    """
    with place.database() as database:
        found = Group(group, root=place.root).progress(database)
    show(signals, [_row(found)], COLUMNS, as_json)


@groups.command()
@group_argument
@click.option("--timeout", type=WAIT, metavar="S", help="wait S seconds [no bound]")
@json_option
@in_a_place
@click.pass_obj
def wait(signals: Signals, place: Place, group: str, timeout: float | None, as_json: bool) -> None:
    """Wait until GROUP has ended. Status 1: it has not within --timeout."""
    with place.database() as database:
        found = Group(group, root=place.root).wait(database, timeout)
    tell(signals, f"{group} has ended: {found.done} done, {found.failed} failed", _row(found), as_json)


@groups.command()
@group_argument
@json_option
@in_a_place
@click.pass_obj
def close(signals: Signals, place: Place, group: str, as_json: bool) -> None:
    """Let GROUP take no more members. It ends when none is left."""
    _change(signals, place, group, "closed", as_json)


@groups.command()
@group_argument
@click.option("--yes", is_flag=True, help="confirm")
@json_option
@in_a_place
@click.pass_obj
def cancel(signals: Signals, place: Place, group: str, yes: bool, as_json: bool) -> None:
    """Cancel all tasks of GROUP, and the one that starts when it ends."""
    if not yes:
        with place.database() as database:
            left = Group(group, root=place.root).progress(database).left
        raise Refused(f"cancel would end {counted(left, 'task')} of {group}: confirm with --yes")
    _change(signals, place, group, "cancelled", as_json)


def _change(signals: Signals, place: Place, group: str, told: str, as_json: bool) -> None:
    with place.database() as database:
        found = Group(group, root=place.root)
        (found.cancel if told == "cancelled" else found.close)(database)
        progress = found.progress(database)
    tell(signals, f"{group} is {told}: {counted(progress.left, 'task')} left", _row(progress), as_json)


def _row(found: GroupProgress) -> Row:
    return {**asdict(found), "state": _state(found)}


def _state(found: GroupProgress) -> str:
    if found.ended is not None:
        return "ended"
    return "cancelled" if found.cancelled else "open" if found.open else "closed"


COLUMNS: Columns = {
    "group": field("id"),
    **{name: field(name) for name in ("state", "total", "done", "failed", "left", "buried")},
    "then": lambda row: "" if row["then"] is None else f"{row['then_queue']} {row['then']}",
}
