"""`fdbqueue ended`: the ended tasks that a queue with `retain_s` keeps."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound, UnsupportedOption
from fdbqueue.core.page import Page
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import EndedTask
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_argument
from fdbqueue.operate.cli.paging import paged
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, span
from fdbqueue.operate.cli.values import key_of, line_of
from fdbqueue.tasks.queue import TaskQueue


@cli.command()
@queue_argument
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--key", metavar="KEY", help="those of a task key, as JSON or text")
@click.option("--text", "as_text", is_flag=True, help="take KEY as text, never as JSON")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the last N [100]")
@json_option
@in_a_place
@click.pass_obj
def ended(
    signals: Signals,
    place: Place,
    queue: str,
    ids: tuple[str, ...],
    key: str | None,
    as_text: bool,
    count: int,
    as_json: bool,
) -> None:
    """List the last tasks of QUEUE that have ended, the latest first, or those with these IDs.

    The queue keeps them if it was created with --retain. Columns: id, outcome, time since its end, attempts,
    time from its last take to its end, key. If more follow, standard error says so.
    """
    if ids and key is not None:
        raise click.UsageError("ended takes IDs or --key, not both")
    of_key = None if key is None else (_key(key, as_text),)
    with place.tasks(queue) as (database, found):
        rows = _found(database, found, ids) if ids else _listed(database, found, of_key, count)
        show(signals, rows, COLUMNS, as_json)


def told_end(database: Database, queue: TaskQueue, id_: str) -> str:
    """Return the outcome of a task that has ended, in brackets, if its queue keeps ended tasks."""
    with suppress(TaskNotFound, UnsupportedOption):
        task = queue.ended_task(database, id_)
        return f" (it was {task.outcome} {span(database.runtime.now() - task.ended)} ago)"
    return ""


def _found(database: Database, queue: TaskQueue, ids: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of the tasks that are there, and refuse the missing ones at the end."""
    missing = []
    for id_ in ids:
        try:
            task = queue.ended_task(database, id_)
        except TaskNotFound:
            missing.append(id_)
        else:
            yield _row(database, task)
    if missing:
        raise Refused(f"not among the ended tasks of {queue.name!r}: {', '.join(missing)}")


def _listed(database: Database, queue: TaskQueue, of_key: tuple[object] | None, count: int) -> Iterator[Row]:
    """Read the last ended tasks, page by page. `of_key` has the task key, which may be None."""

    def read(limit: int, after: str | None) -> Page[EndedTask]:
        if of_key is None:
            return queue.ended_tasks(database, limit, after=after)
        return queue.ended_tasks_of(database, *of_key, limit, after=after)

    for task in paged(read, count, f"more ended tasks may follow the last {count}"):
        yield _row(database, task)


def _key(text: str, as_text: bool) -> object:
    try:
        return key_of(text, as_text)
    except ValueError as reason:
        raise click.BadParameter(str(reason), param_hint="--key") from None


def _row(database: Database, task: EndedTask) -> Row:
    return {**asdict(task), "ago_s": max(0.0, database.runtime.now() - task.ended)}


def _ran(row: Row) -> str:
    return "" if row["taken"] is None else span(row["ended"] - row["taken"])


COLUMNS: Columns = {
    "id": field("id"),
    "outcome": field("outcome"),
    "ended": lambda row: span(row["ago_s"]),
    "attempts": field("attempts"),
    "ran": _ran,
    "key": lambda row: "" if row["key"] is None else line_of(row["key"]).decode().strip(),
}
