"""Commands on whole queues: `queues`, `create`, `stats`, `pause`, `resume` and `drop`."""

from functools import partial
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import DefinitionUnreadable, ImportUnfinished, LayoutNewer, QueueBusy, QueueExists
from fdbqueue.core.registry import PLAIN, exists_already, told_option
from fdbqueue.core.visible import counted
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import Here, cli, command, queue_argument, queue_names, yes_option
from fdbqueue.operate.cli.parameters import queue_options
from fdbqueue.operate.cli.rows import STATES, queue_row, queue_rows
from fdbqueue.operate.cli.session import CREATE_DATABASE, ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import Cell, Row, cell_of, columns
from fdbqueue.operate.cli.wording import key_of, option_named
from fdbqueue.queues.recipe.queue import stored_options
from fdbqueue.tasks.limits.limit import walk_all
from fdbqueue.tasks.options import kind_names
from fdbqueue.tasks.queue import TaskQueue


@command(cli)
def queues(here: Here) -> None:
    """List the queues, with their kinds and the numbers of their tasks or items.

    Columns: name, kind, ready, taken, buried, delayed, done, paused. For a queue of items or elements, the
    column ready has their number.
    """
    with here.database() as database:
        rows = [*queue_rows(here, database)]
    here.show(rows, QUEUE_COLUMNS)


@command(cli)
@click.argument("queue", metavar="QUEUE")
@click.option("--kind", type=click.Choice([PLAIN, *kind_names()]), help="[the first with these options]")
@queue_options
@click.option("--if-not-exists", is_flag=True, help="succeed if QUEUE exists with the given options")
@click.option("--any-options", is_flag=True, help="with --if-not-exists: whatever its kind and options")
def create(
    here: Here, queue: str, kind: str | None, if_not_exists: bool, any_options: bool, **options: Any
) -> None:
    """Create QUEUE, a queue of tasks, or with --kind queue a plain queue of items.

    fifo: the oldest task first. fifottl: the lowest priority first, with ttl, ttr and delay. limfifottl: as
    fifottl, with a capacity. utube, utubettl: one task of a key at a time, in order. fair: keys in rounds.
    bag: no order, with ttl, ttr and delay. Without --kind it is the first that has the options given, so
    fifottl for --ttr. An option that the kind does not have is refused. With partitions, the order holds
    within each; tasks of one key are in one of them.
    """
    options["weights"] = dict(map(_weight, options["weights"]))
    given = {name: value for name, value in options.items() if value not in (None, (), {})}
    of_tasks = [name for name in given if name not in ("codec", "partitions")]
    if kind == PLAIN and of_tasks:
        raise click.UsageError(f"{option_named(of_tasks[0])} is for task queues")
    told = "is created"
    trial = partial(_create, place=here, name=queue, kind=kind, given=given)
    with here.made(trial, create=True, cure=CREATE_DATABASE) as database:
        try:
            _create(database, here, queue, kind, given)
        except QueueExists as there:
            if not if_not_exists or (there.differing and not any_options):
                raise
            told = "exists already"
        row = queue_row(here, database, here.definition(database, queue))
    here.tell(f"{queue!r} {told}, of kind {row['kind']}{_in_force(row)}", row)


def _weight(text: str) -> tuple[Any, int]:
    key, equals, weight = text.rpartition("=")
    try:
        found, number = key_of(key), int(weight if equals else "")
        hash(found)
    except (ValueError, TypeError, RecursionError):
        raise click.BadParameter(f"{text!r} is not of the form KEY=N", param_hint="--weight") from None
    return found, number


def _create(database: Database, place: Place, name: str, kind: str | None, given: dict[str, Any]) -> None:
    """Create a queue; the error of one that exists tells where it differs from what was given."""
    if kind != PLAIN:
        TaskQueue.create(database, name, kind, root=place.root, **given)
        return
    options = stored_options(given.get("codec", "json"), given.get("partitions", 1))
    try:
        place.registry.create(database, name, PLAIN, options)
    except QueueExists as there:
        raise exists_already(name, there.kind, there.options, {"kind": PLAIN, **given}) from None


def _in_force(row: Row) -> str:
    """The options of a queue that are not the usual ones."""
    chosen = [(name, value) for name, value in row["options"].items() if (name, value) != ("codec", "json")]
    told = [f"{option_named(name)} {told_option(value)}" for name, value in chosen]
    return f", with {', '.join(told)}" if told else ""


@command(cli)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=queue_names)
def stats(here: Here, queue: str | None) -> None:
    """Print the statistics of QUEUE; without QUEUE, of all queues."""
    with here.database() as database:
        if queue is None:
            rows = [*queue_rows(here, database)]
        else:
            rows = [queue_row(here, database, here.definition(database, queue))]
    if here.as_json:
        here.show(rows, {})
    else:
        lines = [line for row in rows for line in _statistic_lines(row)]
        here.show(lines, columns(*(["queue"] if queue is None else []), "what", "value"))


def _statistic_lines(row: Row) -> list[Row]:
    """Return one line per number, named as in the JSON."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("options", "tasks", "calls", "ends"):
            flat |= {f"{name}.{part}": number for part, number in value.items()}
        else:
            flat[name] = value
    return [{"queue": row["name"], "what": what, "value": cell_of(value)} for what, value in flat.items()]


@command(cli, queue_argument)
def pause(here: Here, queue: str) -> None:
    """Let no task be taken from QUEUE until `resume`. Workers obey at once.

    Puts go on, and so do tasks that were taken.
    """
    with here.tasks(queue) as (database, found):
        found.pause(database)
    here.tell(f"{queue!r} is paused", {"queue": queue, "paused": True})


@command(cli, queue_argument)
def resume(here: Here, queue: str) -> None:
    """Let tasks be taken from QUEUE again, after `pause`."""
    with here.tasks(queue) as (database, found):
        found.resume(database)
    here.tell(f"{queue!r} is resumed", {"queue": queue, "paused": False})


@command(cli, queue_argument, yes_option)
def drop(here: Here, queue: str, yes: bool) -> None:
    """Remove QUEUE and its contents. Refused while a call waits for its tasks, or a session holds one.

    The tasks are removed first, in bounded transactions, then the queue. After an interruption, the queue is
    left with the tasks that were not removed yet.
    """
    with here.database() as database:
        is_import = False
        try:
            found = here.definition(database, queue)
            tasks = None if found.kind in (PLAIN, *ELEMENT_KINDS) else here.tasks_in(database, queue)
            row = queue_row(here, database, found)
            items = row["tasks"]["total"] if "tasks" in row else row.get("items", 0)
            there = f"the {counted(items, 'item')}"
        except LayoutNewer:
            raise
        except (DefinitionUnreadable, ImportUnfinished) as reason:
            tasks, items, there = None, 0, f"all its contents (not counted: {reason})"
            is_import = isinstance(reason, ImportUnfinished)
        if not yes:
            raise Refused(f"drop would remove {queue!r} and {there} in it: confirm with --yes")
        if tasks is None:
            here.registry.drop(database, queue)
        else:
            if busy := tasks.busy(database):  # refuse before any task is removed
                raise QueueBusy(name=queue, reason=busy)
            late.terminal.remove_all(here.signals, database, tasks, items)
            tasks.drop(database)
        if is_import:  # its definition does not tell the limits that its tasks name
            walk_all(database, here.root)
    here.tell(f"{queue!r} is gone", {"queue": queue, "dropped": True})


def _count(state: str) -> Cell:
    def cell(row: Row) -> str:
        if "tasks" in row:
            return str(row["tasks"][state])
        return str(row.get("items", "")) if state == "ready" else ""

    return cell


QUEUE_COLUMNS = columns(
    "name",
    "kind",
    **{state: _count(state) for state in (*STATES, "done")},
    paused=lambda row: "paused" if row.get("paused") else "",
)
