"""Commands on whole queues: `queues`, `create`, `stats`, `pause`, `resume` and `drop`."""

from functools import partial
from typing import Any

import click

from fdbqueue.core.codec import BUILT_IN
from fdbqueue.core.database import Database
from fdbqueue.core.errors import DefinitionUnreadable, ImportUnfinished, LayoutNewer, QueueBusy, QueueExists
from fdbqueue.core.registry.definition import PLAIN
from fdbqueue.core.registry.registry import exists_already, told_option
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_argument, queue_names
from fdbqueue.operate.cli.many import remove_all
from fdbqueue.operate.cli.parameters import RETAIN, SPAN
from fdbqueue.operate.cli.partitions import NUMBER
from fdbqueue.operate.cli.rows import STATES, queue_row, queue_rows
from fdbqueue.operate.cli.session import CREATE_DATABASE, ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, tell
from fdbqueue.operate.cli.values import key_of, line_of
from fdbqueue.operate.cli.wording import option_named
from fdbqueue.queues.recipe.queue import stored_options
from fdbqueue.tasks.kinds import kind_names
from fdbqueue.tasks.parking.limit import walk_all
from fdbqueue.tasks.queue import TaskQueue


@cli.command()
@json_option
@in_a_place
@click.pass_obj
def queues(signals: Signals, place: Place, as_json: bool) -> None:
    """List the queues, with their kinds and the numbers of their tasks or items.

    Columns: name, kind, ready, taken, buried, delayed, done, paused. For a queue of items or elements, the
    column ready has their number.
    """
    with place.database() as database:
        rows = queue_rows(place, database)
    show(signals, rows, QUEUE_COLUMNS, as_json)


@cli.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--kind", type=click.Choice([PLAIN, *kind_names()]), help="[the first with these options]")
@click.option("--ttl", type=SPAN, metavar="S", help="a task lives S seconds [for ever]")
@click.option("--ttr", type=SPAN, metavar="S", help="a lease lasts S seconds [for ever]")
@click.option("--priority", "pri", type=int, metavar="N", help="of a task without one [0]")
@click.option("--capacity", type=click.IntRange(min=1), metavar="N", help="at most N tasks [no bound]")
@click.option("--key-concurrency", type=int, metavar="N", help="N tasks of a key at a time [1]")
@click.option("--weight", "weights", multiple=True, metavar="KEY=N", help="tasks of KEY in a round [1]")
@click.option("--partitions", type=NUMBER, metavar="N", help="share its load among N parts [1]")
@click.option("--retain", "retain_s", type=RETAIN, metavar="S", help="keep ended tasks for S seconds [none]")
@click.option("--limit", "limits", multiple=True, metavar="NAME", help="a limit of its tasks; repeatable")
@click.option(
    "--task-limit", "task_limits", multiple=True, metavar="NAME", help="a limit that tasks may name"
)
@click.option("--codec", type=click.Choice(BUILT_IN), help="[json]")
@click.option("--if-not-exists", is_flag=True, help="succeed if QUEUE exists with the given options")
@click.option("--any-options", is_flag=True, help="with --if-not-exists: whatever its kind and options")
@json_option
@in_a_place
@click.pass_obj
def create(
    signals: Signals,
    /,
    place: Place,
    queue: str,
    kind: str | None,
    if_not_exists: bool,
    any_options: bool,
    as_json: bool,
    **options: Any,
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
    if kind == PLAIN:
        _refuse_options_of_tasks(given)
    told = "is created"
    trial = partial(_create, place=place, name=queue, kind=kind, given=given)
    with place.made(trial, create=True, cure=CREATE_DATABASE) as database:
        try:
            _create(database, place, queue, kind, given)
        except QueueExists as there:
            if not if_not_exists or (there.differing and not any_options):
                raise
            told = "exists already"
        row = queue_row(place, database, place.definition(database, queue))
    tell(signals, f"{queue!r} {told}, of kind {row['kind']}{_in_force(row)}", row, as_json)


@cli.command()
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=queue_names)
@json_option
@in_a_place
@click.pass_obj
def stats(signals: Signals, place: Place, queue: str | None, as_json: bool) -> None:
    """Print the statistics of QUEUE; without QUEUE, of all queues."""
    with place.database() as database:
        if queue is None:
            rows = queue_rows(place, database)
        else:
            rows = [queue_row(place, database, place.definition(database, queue))]
    if as_json:
        show(signals, rows, {}, as_json)
        return
    lines = [line for row in rows for line in _statistic_lines(row)]
    columns = NUMBER_COLUMNS if queue is not None else {"queue": field("queue"), **NUMBER_COLUMNS}
    show(signals, lines, columns, as_json)


@cli.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def pause(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Let no task be taken from QUEUE until `resume`. Workers obey at once.

    Puts go on, and so do tasks that were taken.
    """
    with place.tasks(queue) as (database, found):
        found.pause(database)
    tell(signals, f"{queue!r} is paused", {"queue": queue, "paused": True}, as_json)


@cli.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def resume(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Let tasks be taken from QUEUE again, after `pause`."""
    with place.tasks(queue) as (database, found):
        found.resume(database)
    tell(signals, f"{queue!r} is resumed", {"queue": queue, "paused": False}, as_json)


@cli.command()
@queue_argument
@click.option("--yes", is_flag=True, help="confirm")
@json_option
@in_a_place
@click.pass_obj
def drop(signals: Signals, place: Place, queue: str, yes: bool, as_json: bool) -> None:
    """Remove QUEUE and its contents. Refused while a call waits for its tasks, or a session holds one.

    The tasks are removed first, in bounded transactions, then the queue. After an interruption, the queue is
    left with the tasks that were not removed yet.
    """
    with place.database() as database:
        is_import = False
        try:
            found = place.definition(database, queue)
            tasks = None if found.kind in (PLAIN, *ELEMENT_KINDS) else place.tasks_in(database, queue)
            items = _items_in(queue_row(place, database, found))
            there = f"the {counted(items, 'item')}"
        except LayoutNewer:
            raise
        except (DefinitionUnreadable, ImportUnfinished) as reason:
            tasks, items, there = None, 0, f"all its contents (not counted: {reason})"
            is_import = isinstance(reason, ImportUnfinished)
        if not yes:
            raise Refused(f"drop would remove {queue!r} and {there} in it: confirm with --yes")
        if tasks is not None:
            _drop_tasks(signals, database, tasks, items)
        else:
            place.registry.drop(database, queue)
        if is_import:  # its definition does not tell the limits that its tasks name
            walk_all(database, place.root)
    tell(signals, f"{queue!r} is gone", {"queue": queue, "dropped": True}, as_json)


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


def _drop_tasks(signals: Signals, database: Database, queue: TaskQueue, there: int) -> None:
    busy = queue.busy(database)
    if busy:  # refuse before any task is removed
        raise QueueBusy(name=queue.name, reason=busy)
    remove_all(signals, database, queue, there)
    queue.drop(database)


def _refuse_options_of_tasks(given: dict[str, Any]) -> None:
    for name in given:
        if name not in ("codec", "partitions"):
            raise click.UsageError(f"{option_named(name)} is for task queues")


def _weight(text: str) -> tuple[Any, int]:
    key, equals, weight = text.rpartition("=")
    try:
        found, number = key_of(key), int(weight if equals else "")
        hash(found)
    except (ValueError, TypeError, RecursionError):
        raise click.BadParameter(f"{text!r} is not of the form KEY=N", param_hint="--weight") from None
    return found, number


def _items_in(row: Row) -> int:
    count: int = row["tasks"]["total"] if "tasks" in row else row.get("items", 0)
    return count


def _count(state: str) -> Any:
    def cell(row: Row) -> str:
        if "tasks" in row:
            return str(row["tasks"][state])
        return str(row.get("items", "")) if state == "ready" else ""

    return cell


QUEUE_COLUMNS: Columns = {
    "name": field("name"),
    "kind": field("kind"),
    **{state: _count(state) for state in (*STATES, "done")},
    "paused": lambda row: "paused" if row.get("paused") else "",
}
NUMBER_COLUMNS: Columns = {"what": field("what"), "value": field("value")}


def _statistic_lines(row: Row) -> list[Row]:
    """Return one line per number, named as in the JSON."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("options", "tasks", "calls", "ends"):
            flat |= {f"{name}.{part}": number for part, number in value.items()}
        else:
            flat[name] = value
    return [{"queue": row["name"], "what": what, "value": _shown(value)} for what, value in flat.items()]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else line_of(value).decode().strip()
