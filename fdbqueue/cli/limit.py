"""`fdbqueue limit`: limits of the tasks that run, or start, in all queues that share them."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from fdbqueue.cli.group import cli, help_without_command, in_a_place, json_option, stdout_of
from fdbqueue.cli.parameters import SPAN
from fdbqueue.cli.session import Place
from fdbqueue.cli.show import Columns, Row, field, show, tell
from fdbqueue.cli.values import line_of
from fdbqueue.limiting.limit import Limit
from fdbqueue.signals import Signals

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
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="N tasks run at a time")
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="N tasks start in --per seconds")
@click.option("--per", type=SPAN, metavar="S", help="the seconds of --rate")
@click.option("--burst", type=click.IntRange(min=1), metavar="N", help="N more at once [a tenth of --rate]")
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
    as_json: bool,
) -> None:
    """Create the limit NAME, or change it: --slots N, or --rate N --per S.

    Tasks that run go on. With fewer slots than tasks that run, no task starts until fewer run.
    """
    with place.database(create=True) as database:
        found = Limit.set(database, name, slots=slots, rate=rate, per=per, burst=burst, root=place.root)
    tell(signals, f"the limit {name!r} allows {_told(found)}", asdict(found), as_json)


@limit.command("list")
@json_option
@in_a_place
@click.pass_obj
def list_(signals: Signals, place: Place, as_json: bool) -> None:
    """List the limits. Columns: name, the tasks that it allows, slots in use, tasks that may start now."""
    with place.database() as database:
        show(signals, map(asdict, Limit.list(database, root=place.root)), COLUMNS, as_json)


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
    tell(signals, f"{name!r} allows {_told(found)}; {found.free} may start now", {}, as_json=False)
    show(signals, _holders(found), HOLDER_COLUMNS, as_json=False)


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


def _holders(found: Limit) -> Iterator[Row]:
    return (asdict(one) for one in found.holders)


def _told(found: Limit) -> str:
    if found.slots is not None:
        return f"{found.slots} task(s) at a time"
    return f"{found.rate} start(s) in {found.per:g} s, and {found.burst} more at once"


def _allows(row: Row) -> str:
    if row["slots"] is not None:
        return f"{row['slots']} at a time"
    return f"{row['rate']} in {row['per']:g} s, burst {row['burst']}"


COLUMNS: Columns = {"name": field("name"), "allows": _allows, "used": field("used"), "free": field("free")}
HOLDER_COLUMNS: Columns = {"id": field("task"), "queue": field("queue"), "session": field("session")}
