"""`fdbqueue limit`: limits of the tasks that run, or start, in all queues that share them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.limits import SLOTS_MAX
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.group import Here, command, first_option, group
from fdbqueue.operate.cli.parameters import SPAN, key_in
from fdbqueue.operate.cli.session import CREATE_DATABASE
from fdbqueue.operate.cli.show import Cell, Row, columns, paged
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.limits.state import LimitKey

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
def set_(here: Here, name: str, **numbers: Any) -> None:
    """Create the limit NAME, or change it: --slots N, or --rate N --per S.

    With --per-key, each key that tasks name has these numbers for itself. Tasks that run go on. With fewer
    slots than tasks that run, no task starts until fewer run. A limit of slots cannot become one of a rate,
    nor the reverse.
    """
    if (numbers["slots"] is None) == (numbers["rate"] is None):
        raise click.UsageError("give --slots N, or --rate N with --per S")

    def change(database: Database) -> Limit:
        return Limit.set(database, name, **numbers, root=here.root)

    with here.made(change, create=True, cure=CREATE_DATABASE) as database:
        found = change(database)
    here.tell(f"the limit {name!r} allows {_told(found)}", asdict(found))


@command(limit, name="list")
def list_(here: Here) -> None:
    """List the limits, also those that cannot be read: they limit nothing.

    Columns: name, the tasks that it allows, slots in use, tasks that may start now.
    """
    with here.database() as database:
        here.show(map(_row, Limit.list(database, root=here.root)), COLUMNS)


@command(limit, name_argument, name="show")
def show_(here: Here, name: str) -> None:
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
            one = Limit.open_key(database, name, key_in(key, text), root=here.root)
            _show_holders(here, one, f"the key {one.key!r} uses {one.used}; {one.free} may start now")
            return
        found = paged(
            lambda limit, after: Limit.keys(database, name, limit=limit, after=after, root=here.root),
            count,
            f"more keys follow the first {count}",
        )
        rows = list(map(_row, found))
    here.show(rows, columns("key", "used", "free"))


@command(limit, name_argument)
def delete(here: Here, name: str) -> None:
    """Delete the limit NAME. Refused while a task holds a slot of it."""
    with here.database() as database:
        Limit.delete(database, name, root=here.root)
    here.tell(f"the limit {name!r} is gone", {"name": name, "deleted": True})


def _row(found: Limit | LimitKey) -> Row:
    """A limit or a key in a list: the holders are those of `show`, and of `keys --key`."""
    return {name: value for name, value in asdict(found).items() if name != "holders"}


def _told(found: Limit) -> str:
    of_key = " for each key" if found.per_key else ""
    if found.slots is not None:
        return f"{counted(found.slots, 'task')} at a time{of_key}"
    return f"{counted(found.rate or 0, 'start')} in {found.per:g} s, at most {found.burst} at once{of_key}"


def allowed(row: Mapping[str, Any], per_s: float | None) -> str:
    """Return the cell for the tasks of a limit: at a time, or a rate."""
    of_key = " for each key" if row["per_key"] else ""
    if row["slots"] is not None:
        return f"{row['slots']} at a time{of_key}"
    return f"{row['rate']} in {per_s:g} s, burst {row['burst']}{of_key}"


def _if_read(name: str) -> Cell:
    """The number of that name; empty for a limit that cannot be read."""
    return lambda row: f"{row[name]}" if row["error"] is None else ""


COLUMNS = columns(
    "name",
    allows=lambda row: "unreadable" if row["error"] is not None else allowed(row, row["per"]),
    used=_if_read("used"),
    free=_if_read("free"),
)
HOLDER_COLUMNS = columns(id="task", queue="queue", session="session")
