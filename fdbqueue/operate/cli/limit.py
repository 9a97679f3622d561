"""`fdbqueue limit`: limits of the tasks that run, or start, in all queues that share them."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.limits import SLOTS_MAX
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.group import cli, help_without_command, in_a_place, json_option, stdout_of
from fdbqueue.operate.cli.paging import paged
from fdbqueue.operate.cli.parameters import SPAN
from fdbqueue.operate.cli.put_values import key_in
from fdbqueue.operate.cli.session import CREATE_DATABASE, Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, tell
from fdbqueue.operate.cli.values import line_of
from fdbqueue.tasks.limiting.key_looks import LimitKey
from fdbqueue.tasks.parking.limit import Limit

name_argument = click.argument("name", metavar="NAME")


@cli.group("limit", invoke_without_command=True)
@click.pass_context
def limit(context: click.Context) -> None:
    """Set, show and delete limits of tasks, which queues share.

    `fdbqueue create QUEUE --limit NAME` makes a queue under a limit. A change holds at once, for all queues.
    """
    help_without_command(context)


@limit.command("set")
@name_argument
@click.option("--slots", type=click.IntRange(1, SLOTS_MAX), metavar="N", help="N tasks run at a time")
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="N tasks start in --per seconds")
@click.option("--per", type=SPAN, metavar="S", help="the seconds of --rate")
@click.option(
    "--burst", type=click.IntRange(min=1), metavar="N", help="at most N at once [a tenth of --rate]"
)
@click.option("--per-key", is_flag=True, help="for each key that tasks name")
@json_option
@in_a_place
@click.pass_obj
def set_(
    signals: Signals,
    place: Place,
    name: str,
    slots: int | None,
    rate: int | None,
    per: float | None,
    burst: int | None,
    per_key: bool,
    as_json: bool,
) -> None:
    """Create the limit NAME, or change it: --slots N, or --rate N --per S.

    With --per-key, each key that tasks name has these numbers for itself. Tasks that run go on. With fewer
    slots than tasks that run, no task starts until fewer run. A limit of slots cannot become one of a rate,
    nor the reverse.
    """
    if (slots is None) == (rate is None):
        raise click.UsageError("give --slots N, or --rate N with --per S")
    numbers: dict[str, Any] = {"slots": slots, "rate": rate, "per": per, "burst": burst}

    def change(database: Database) -> Limit:
        return Limit.set(database, name, **numbers, per_key=per_key, root=place.root)

    with place.made(change, create=True, cure=CREATE_DATABASE) as database:
        found = change(database)
    tell(signals, f"the limit {name!r} allows {_told(found)}", asdict(found), as_json)


@limit.command("list")
@json_option
@in_a_place
@click.pass_obj
def list_(signals: Signals, place: Place, as_json: bool) -> None:
    """List the limits, also those that cannot be read: they limit nothing.

    Columns: name, the tasks that it allows, slots in use, tasks that may start now.
    """
    with place.database() as database:
        show(signals, map(_row, Limit.list(database, root=place.root)), COLUMNS, as_json)


@limit.command("show")
@name_argument
@json_option
@in_a_place
@click.pass_obj
def show_(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Show the limit NAME and the first tasks that hold its slots.

    Columns: id, queue, session. With --json, one object has the limit and these tasks.
    """
    with place.database() as database:
        found = Limit.open(database, name, root=place.root)
    if as_json:
        stdout_of(signals).print(line_of(asdict(found)))
        return
    now = f"{found.free} may start now"
    if found.per_key:
        now = f"tasks hold {counted(found.used, 'slot')}; `fdbqueue limit keys {name}` lists the keys"
    tell(signals, f"{name!r} allows {_told(found)}; {now}", {}, as_json=False)
    show(signals, _holders(found), HOLDER_COLUMNS, as_json=False)


@limit.command()
@name_argument
@click.option(
    "--key", metavar="KEY", help="only KEY, as JSON or text, with the first tasks that hold its slots"
)
@click.option("--text", is_flag=True, help="take KEY as text, never as JSON")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]")
@json_option
@in_a_place
@click.pass_obj
def keys(
    signals: Signals, place: Place, name: str, key: str | None, text: bool, count: int, as_json: bool
) -> None:
    """List the keys of the limit NAME whose tasks hold slots, or have used tokens.

    Columns: key, slots in use, tasks that may start now. With --key: id, queue, session of its tasks; with
    --json, one object has the key and these tasks.
    """
    if key is not None:
        with place.database() as database:
            one = Limit.open_key(database, name, key_in(key, text), root=place.root)
        if as_json:
            stdout_of(signals).print(line_of(asdict(one)))
            return
        tell(signals, f"the key {one.key!r} uses {one.used}; {one.free} may start now", {}, as_json=False)
        show(signals, (asdict(holder) for holder in one.holders), HOLDER_COLUMNS, as_json=False)
        return
    with place.database() as database:
        found = paged(
            lambda limit, after: Limit.keys(database, name, limit=limit, after=after, root=place.root),
            count,
            f"more keys follow the first {count}",
        )
        rows = list(map(_row, found))
    show(signals, rows, KEY_COLUMNS, as_json)


@limit.command("delete")
@name_argument
@json_option
@in_a_place
@click.pass_obj
def delete(signals: Signals, place: Place, name: str, as_json: bool) -> None:
    """Delete the limit NAME. Refused while a task holds a slot of it."""
    with place.database() as database:
        Limit.delete(database, name, root=place.root)
    tell(signals, f"the limit {name!r} is gone", {"name": name, "deleted": True}, as_json)


def _row(found: Limit | LimitKey) -> Row:
    """A limit or a key in a list: the holders are those of `show`, and of `keys --key`."""
    return {name: value for name, value in asdict(found).items() if name != "holders"}


def _holders(found: Limit) -> Iterator[Row]:
    return (asdict(one) for one in found.holders)


def _told(found: Limit) -> str:
    of_key = " for each key" if found.per_key else ""
    if found.slots is not None:
        return f"{counted(found.slots, 'task')} at a time{of_key}"
    return f"{counted(found.rate or 0, 'start')} in {found.per:g} s, at most {found.burst} at once{of_key}"


def _allows(row: Row) -> str:
    if row["error"] is not None:
        return "unreadable"
    of_key = " for each key" if row["per_key"] else ""
    if row["slots"] is not None:
        return f"{row['slots']} at a time{of_key}"
    return f"{row['rate']} in {row['per']:g} s, burst {row['burst']}{of_key}"


def _number(name: str) -> Callable[[Row], str]:
    """The number of that name; empty for a limit that cannot be read."""
    return lambda row: f"{row[name]}" if row["error"] is None else ""


COLUMNS: Columns = {
    "name": field("name"),
    "allows": _allows,
    "used": _number("used"),
    "free": _number("free"),
}
KEY_COLUMNS: Columns = {"key": field("key"), "used": field("used"), "free": field("free")}
HOLDER_COLUMNS: Columns = {"id": field("task"), "queue": field("queue"), "session": field("session")}
