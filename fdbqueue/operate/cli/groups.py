"""`fdbqueue group`: groups of tasks, their progress, and their ends."""

from dataclasses import asdict
from functools import partial

import click

from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import Here, command, first_option, group, yes_option
from fdbqueue.operate.cli.parameters import WAIT, values_of
from fdbqueue.operate.cli.show import Row, columns, paged
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.tasks.groups import Group, GroupProgress, list_groups

group_argument = click.argument("group", metavar="GROUP")


@group("group")
def groups() -> None:
    """Count tasks together, wait for all of them, and start a task when they have ended.

    GROUP is the id that `group create` prints; `put --group` puts its members.
    """


@command(groups)
@click.option("--then", nargs=2, metavar="QUEUE DATA", help="start this task when the group has ended")
@click.option("--text", is_flag=True, help="put DATA as text, never as JSON")
@click.option("--skip-buried", is_flag=True, help="do not wait for buried members: they have failed")
def create(here: Here, then: tuple[str, str] | None, text: bool, skip_buried: bool) -> None:
    """Make an open group, and print its id."""
    out = here.out()
    with here.database() as database:
        put = None if then is None else (here.tasks_in(database, then[0]), values_of(then[1:], text)[0])
        made = Group.create(database, then=put, wait_for_buried=not skip_buried, root=here.root)
        found = made.progress(database)
    out.print(line_of(_row(found)) if here.as_json else f"{made.id}\n".encode())


@command(groups, first_option, name="list")
def list_(here: Here, count: int) -> None:
    """List groups, in the order of their ids: those that have not ended, and those that ended in the last
    day.

    Columns: group, state, total, done, failed, left, buried, the task that starts when it ends.
    """
    with here.database() as database:
        read = partial(list_groups, database, root=here.root)
        found = paged(read, count, f"more groups follow the first {count}")
        here.show(map(_row, found), COLUMNS)


@command(groups, group_argument, name="show")
def show_(here: Here, group: str) -> None:
    """Show the progress of GROUP.

    Columns: group, state, total, done, failed, left, buried, the task that starts when it ends.
    """
    with here.database() as database:
        found = Group(group, root=here.root).progress(database)
    here.show([_row(found)], COLUMNS)


@command(groups, group_argument)
@click.option("--timeout", type=WAIT, metavar="S", help="wait S seconds [no bound]")
def wait(here: Here, group: str, timeout: float | None) -> None:
    """Wait until GROUP has ended. Status 1: it has not within --timeout."""
    with here.database() as database:
        found = Group(group, root=here.root).wait(database, timeout)
    here.tell(f"{group} has ended: {found.done} done, {found.failed} failed", _row(found))


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
    here.tell(f"{group} is {told}: {counted(progress.left, 'task')} left", _row(progress))


def _row(found: GroupProgress) -> Row:
    state = "cancelled" if found.cancelled else "open" if found.open else "closed"
    return {**asdict(found), "state": state if found.ended is None else "ended"}


COLUMNS = columns(
    group="id",
    **{name: name for name in ("state", "total", "done", "failed", "left", "buried")},
    then=lambda row: "" if row["then"] is None else f"{row['then_queue']} {row['then']}",
)
