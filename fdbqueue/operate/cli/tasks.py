"""Commands on the tasks of a queue: list them, and the verbs that need no lease."""

from collections.abc import Callable, Iterator

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.page import Page
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import Here, cli, command, first_option, queue_argument, yes_option
from fdbqueue.operate.cli.looks import told_end
from fdbqueue.operate.cli.rows import (
    STATES,
    failure_rows,
    holder_row,
    processes_of,
    progress_of,
    steps_done,
    task_row,
)
from fdbqueue.operate.cli.show import Row, columns, json_in, json_text, paged, time_in
from fdbqueue.operate.cli.terminal import remove_all, step_by_step
from fdbqueue.tasks.queue import TaskQueue

ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@command(cli)
@queue_argument
@click.option("--state", type=click.Choice(list(STATES)), default="ready", help="[ready]")
@first_option
def tasks(here: Here, queue: str, state: str, count: int) -> None:
    """List the first tasks of QUEUE in a state, in order.

    Columns: id, age, attempts, key, data, last error; for taken tasks also the progress, with "cancelled"
    after a cancel, and the holder. With --json, each task has all its attributes; `history` has the time
    and the error of each failed attempt that is kept, with its traceback or the output of its command;
    `steps_done` has the names of its steps; `holder` has the session of a taken task, its processes and
    its last heartbeat. If more tasks follow, standard error says so.
    """
    with here.tasks(queue) as (database, found):
        shown = TAKEN_COLUMNS if STATES[state] == TaskState.TAKEN else TASK_COLUMNS
        here.show(_listed(database, found, STATES[state], count), shown)


def _listed(database: Database, queue: TaskQueue, state: TaskState, count: int) -> Iterator[Row]:
    """Read the first tasks in that state, page by page."""

    def read(limit: int, after: str | None) -> Page[Task]:
        return queue.tasks(database, state, limit, after=after)

    for task in paged(read, count, f"more tasks follow the first {count}"):
        yield {
            **task_row(task),
            "age_s": max(0.0, database.runtime.now() - task.created),
            "history": failure_rows(database, queue, task),
            "steps_done": steps_done(database, queue, task),
            "holder": holder_row(database, queue, task),
        }


@command(cli)
@queue_argument
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="the first N [1]")
@click.option("--all", "everything", is_flag=True, help="all buried tasks")
def kick(here: Here, queue: str, count: int | None, everything: bool) -> None:
    """Make the first buried tasks of QUEUE ready again."""
    if everything and count is not None:
        raise click.UsageError("kick takes -n N or --all, not both")
    with here.tasks(queue) as (database, found):
        buried = found.statistics(database)["tasks"]["buried"]
        most = buried if everything else min(1 if count is None else count, buried)
        kicked = step_by_step(here.signals, "kicking", most, lambda few: found.kick(database, few))
    here.tell(f"{kicked} kicked", {"queue": queue, "kicked": kicked})


@command(cli)
@queue_argument
@ids_argument
def bury(here: Here, queue: str, ids: tuple[str, ...]) -> None:
    """Bury tasks: they are not taken until `kick`. The lease of a taken task ends."""
    _to_each(here, queue, ids, TaskQueue.bury, "buried")


@command(cli)
@queue_argument
@ids_argument
def cancel(here: Here, queue: str, ids: tuple[str, ...]) -> None:
    """End tasks. The handler of a taken one learns of it at the next heartbeat of its worker.

    A taken task ends with its lease: no other attempt begins. A command of `work --exec` is killed.
    """
    _to_each(here, queue, ids, TaskQueue.cancel, "cancelled")


@command(cli)
@queue_argument
@ids_argument
def delete(here: Here, queue: str, ids: tuple[str, ...]) -> None:
    """Remove tasks, in any state."""
    _to_each(here, queue, ids, TaskQueue.delete, "deleted")


def _to_each(
    here: Here, queue: str, ids: tuple[str, ...], verb: Callable[[TaskQueue, Database, str], Task], done: str
) -> None:
    """Apply `verb` to each task. Missing tasks are reported at the end."""
    missing = []
    with here.tasks(queue) as (database, found):
        for id_ in ids:
            try:
                with here.signals.deferred():
                    task = verb(found, database, id_)
            except TaskNotFound:
                missing.append(f"{id_}{told_end(database, found, id_)}")
            else:
                asked = "" if task.cancel_asked is None else ": it is taken, and ends with its lease"
                here.tell(f"{id_} {done}{asked}", task_row(task))
    if missing:
        raise Refused(f"no such task in {queue!r}: {', '.join(missing)}")


@command(cli, "release-all")
@queue_argument
def release_all(here: Here, queue: str) -> None:
    """Release the taken tasks of QUEUE: their leases end, and they are ready again.

    It releases as many tasks as are taken when it begins, because running workers take tasks again.
    """
    with here.tasks(queue) as (database, found):
        taken = found.statistics(database)["tasks"]["taken"]
        done = step_by_step(here.signals, "releasing", taken, lambda few: found.release_some(database, few))
    here.tell(f"{done} released", {"queue": queue, "released": done})


@command(cli)
@queue_argument
@yes_option
def truncate(here: Here, queue: str, yes: bool) -> None:
    """Remove all tasks of QUEUE, in any state; taken ones, too.

    Tasks are removed in bounded transactions, so other calls do not wait. After an interruption, the tasks
    that were not removed yet are left.
    """
    with here.tasks(queue) as (database, found):
        there = found.statistics(database)["tasks"]["total"]
        if not yes:
            raise Refused(f"truncate would remove {counted(there, 'task')} of {queue!r}: confirm with --yes")
        removed = remove_all(here.signals, database, found, there)
    here.tell(f"{removed} removed", {"queue": queue, "removed": removed})


def _last_error(row: Row) -> str:
    if not row["history"]:
        return ""
    last = row["history"][-1]
    return f"{last['error']}: {last['message']}" if last["message"] else str(last["error"])


TASK_COLUMNS = {
    **columns("id", age=time_in("age_s"), attempts="attempts", key=json_in("key")),
    "data": lambda row: json_text(row["data"]),
    "last error": _last_error,
}
TAKEN_COLUMNS = {**TASK_COLUMNS, "progress": progress_of, "holder": processes_of}
