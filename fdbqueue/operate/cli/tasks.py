"""Commands on the tasks of a queue: list them, and the verbs that need no lease."""

from collections.abc import Callable, Iterator

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.page import Page
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.ended import told_end
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_argument
from fdbqueue.operate.cli.held import processes_of, progress_of
from fdbqueue.operate.cli.many import remove_all, step_by_step
from fdbqueue.operate.cli.paging import paged
from fdbqueue.operate.cli.rows import STATES, failure_rows, holder_row, steps_done, task_row
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, span, tell
from fdbqueue.operate.cli.values import line_of
from fdbqueue.tasks.queue import TaskQueue


@cli.command()
@queue_argument
@click.option("--state", type=click.Choice(list(STATES)), default="ready", help="[ready]")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]")
@json_option
@in_a_place
@click.pass_obj
def tasks(signals: Signals, place: Place, queue: str, state: str, count: int, as_json: bool) -> None:
    """List the first tasks of QUEUE in a state, in order.

    Columns: id, age, attempts, key, data, last error; for taken tasks also the progress, with "cancelled"
    after a cancel, and the holder. With --json, each task has all its attributes; `history` has the time
    and the error of each failed attempt that is kept, with its traceback or the output of its command;
    `steps_done` has the names of its steps; `holder` has the session of a taken task, its processes and
    its last heartbeat. If more tasks follow, standard error says so.
    """
    with place.tasks(queue) as (database, found):
        columns = TAKEN_COLUMNS if STATES[state] == TaskState.TAKEN else TASK_COLUMNS
        show(signals, _listed(database, found, STATES[state], count), columns, as_json)


def _listed(database: Database, queue: TaskQueue, state: TaskState, count: int) -> Iterator[Row]:
    """Read the first tasks in that state, page by page."""

    def read(limit: int, after: str | None) -> Page[Task]:
        return queue.tasks(database, state, limit, after=after)

    for task in paged(read, count, f"more tasks follow the first {count}"):
        yield _listed_row(database, queue, task)


def _listed_row(database: Database, queue: TaskQueue, task: Task) -> Row:
    return {
        **task_row(task),
        "age_s": max(0.0, database.runtime.now() - task.created),
        "history": failure_rows(database, queue, task),
        "steps_done": steps_done(database, queue, task),
        "holder": holder_row(database, queue, task),
    }


@cli.command()
@queue_argument
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="the first N [1]")
@click.option("--all", "everything", is_flag=True, help="all buried tasks")
@json_option
@in_a_place
@click.pass_obj
def kick(
    signals: Signals, place: Place, queue: str, count: int | None, everything: bool, as_json: bool
) -> None:
    """Make the first buried tasks of QUEUE ready again."""
    if everything and count is not None:
        raise click.UsageError("kick takes -n N or --all, not both")
    with place.tasks(queue) as (database, found):
        buried = found.statistics(database)["tasks"]["buried"]
        most = buried if everything else min(1 if count is None else count, buried)
        kicked = step_by_step(signals, "kicking", most, lambda few: found.kick(database, few))
    tell(signals, f"{kicked} kicked", {"queue": queue, "kicked": kicked}, as_json)


@cli.command()
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@in_a_place
@click.pass_obj
def bury(signals: Signals, place: Place, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Bury tasks: they are not taken until `kick`. The lease of a taken task ends."""
    _to_each(signals, place, queue, ids, as_json, TaskQueue.bury, "buried")


@cli.command()
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@in_a_place
@click.pass_obj
def cancel(signals: Signals, place: Place, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """End tasks. The handler of a taken one learns of it at the next heartbeat of its worker.

    A taken task ends with its lease: no other attempt begins. A command of `work --exec` is killed.
    """
    _to_each(signals, place, queue, ids, as_json, TaskQueue.cancel, "cancelled")


@cli.command()
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@in_a_place
@click.pass_obj
def delete(signals: Signals, place: Place, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove tasks, in any state."""
    _to_each(signals, place, queue, ids, as_json, TaskQueue.delete, "deleted")


@cli.command("release-all")
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def release_all(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Release the taken tasks of QUEUE: their leases end, and they are ready again.

    It releases as many tasks as are taken when it begins, because running workers take tasks again.
    """
    with place.tasks(queue) as (database, found):
        taken = found.statistics(database)["tasks"]["taken"]
        released = step_by_step(signals, "releasing", taken, lambda few: found.release_some(database, few))
    tell(signals, f"{released} released", {"queue": queue, "released": released}, as_json)


@cli.command()
@queue_argument
@click.option("--yes", is_flag=True, help="confirm")
@json_option
@in_a_place
@click.pass_obj
def truncate(signals: Signals, place: Place, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all tasks of QUEUE, in any state; taken ones, too.

    Tasks are removed in bounded transactions, so other calls do not wait. After an interruption, the tasks
    that were not removed yet are left.
    """
    with place.tasks(queue) as (database, found):
        there = found.statistics(database)["tasks"]["total"]
        if not yes:
            raise Refused(f"truncate would remove {counted(there, 'task')} of {queue!r}: confirm with --yes")
        removed = remove_all(signals, database, found, there)
    tell(signals, f"{removed} removed", {"queue": queue, "removed": removed}, as_json)


def _to_each(
    signals: Signals,
    place: Place,
    queue: str,
    ids: tuple[str, ...],
    as_json: bool,
    verb: Callable[[TaskQueue, Database, str], Task],
    done: str,
) -> None:
    """Apply `verb` to each task. Missing tasks are reported at the end."""
    missing = []
    with place.tasks(queue) as (database, found):
        for id_ in ids:
            try:
                with signals.deferred():
                    task = verb(found, database, id_)
            except TaskNotFound:
                missing.append(f"{id_}{told_end(database, found, id_)}")
            else:
                asked = "" if task.cancel_asked is None else ": it is taken, and ends with its lease"
                tell(signals, f"{id_} {done}{asked}", task_row(task), as_json)
    if missing:
        raise Refused(f"no such task in {queue!r}: {', '.join(missing)}")


def _last_error(row: Row) -> str:
    if not row["history"]:
        return ""
    last = row["history"][-1]
    return f"{last['error']}: {last['message']}" if last["message"] else str(last["error"])


TASK_COLUMNS: Columns = {
    "id": field("id"),
    "age": lambda row: span(row["age_s"]),
    "attempts": field("attempts"),
    "key": lambda row: "" if row["key"] is None else line_of(row["key"]).decode().strip(),
    "data": lambda row: line_of(row["data"]).decode().strip(),
    "last error": _last_error,
}


TAKEN_COLUMNS: Columns = {**TASK_COLUMNS, "progress": progress_of, "holder": processes_of}
