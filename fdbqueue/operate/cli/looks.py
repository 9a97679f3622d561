"""Commands that look at tasks of a queue one by one: `ended`, `explain`, `follow` and `result`."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound, UnsupportedOption
from fdbqueue.core.explanation import Explanation
from fdbqueue.core.page import Page
from fdbqueue.core.task import EndedTask, Task, TaskState
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import Here, cli, command, in_this_place, queue_argument
from fdbqueue.operate.cli.parameters import WAIT
from fdbqueue.operate.cli.rows import progress_of, task_row
from fdbqueue.operate.cli.show import Row, columns, json_in, paged, span, time_in
from fdbqueue.operate.cli.values import key_of, line_of
from fdbqueue.tasks.queue import TaskQueue

id_argument = click.argument("id_", metavar="ID")


@command(cli)
@queue_argument
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--key", metavar="KEY", help="those of a task key, as JSON or text")
@click.option("--text", "as_text", is_flag=True, help="take KEY as text, never as JSON")
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the last N [100]")
def ended(here: Here, queue: str, ids: tuple[str, ...], key: str | None, as_text: bool, count: int) -> None:
    """List the last tasks of QUEUE that have ended, the latest first, or those with these IDs.

    The queue keeps them if it was created with --retain. Columns: id, outcome, time since its end, attempts,
    time from its last take to its end, key. If more follow, standard error says so.
    """
    if ids and key is not None:
        raise click.UsageError("ended takes IDs or --key, not both")
    try:
        of_key = None if key is None else (key_of(key, as_text),)
    except ValueError as reason:
        raise click.BadParameter(str(reason), param_hint="--key") from None
    with here.tasks(queue) as (database, found):
        tasks = _with_ids(database, found, ids) if ids else _last(database, found, of_key, count)
        now = database.runtime.now
        rows = ({**asdict(task), "ago_s": max(0.0, now() - task.ended)} for task in tasks)
        here.show(rows, ENDED_COLUMNS)


def _with_ids(database: Database, queue: TaskQueue, ids: tuple[str, ...]) -> Iterator[EndedTask]:
    """Yield the tasks that are there, and refuse the missing ones at the end."""
    missing = []
    for id_ in ids:
        try:
            yield queue.ended_task(database, id_)
        except TaskNotFound:
            missing.append(id_)
    if missing:
        raise Refused(f"not among the ended tasks of {queue.name!r}: {', '.join(missing)}")


def _last(
    database: Database, queue: TaskQueue, of_key: tuple[object] | None, count: int
) -> Iterator[EndedTask]:
    """Read the last ended tasks, page by page. `of_key` has the task key, which may be None."""

    def read(limit: int, after: str | None) -> Page[EndedTask]:
        if of_key is None:
            return queue.ended_tasks(database, limit, after=after)
        return queue.ended_tasks_of(database, *of_key, limit, after=after)

    return paged(read, count, f"more ended tasks may follow the last {count}")


def told_end(database: Database, queue: TaskQueue, id_: str) -> str:
    """Return the outcome of a task that has ended, in brackets, if its queue keeps ended tasks."""
    with suppress(TaskNotFound, UnsupportedOption):
        task = queue.ended_task(database, id_)
        return f" (it was {task.outcome} {span(database.runtime.now() - task.ended)} ago)"
    return ""


@contextmanager
def refusing_missing(database: Database, queue: TaskQueue, id_: str) -> Iterator[None]:
    """Raises: Refused for a task that the block has not found."""
    try:
        yield
    except TaskNotFound:
        end = told_end(database, queue, id_)
        raise Refused(f"no such task in {queue.name!r}: {id_}{end}") from None


@command(cli)
@queue_argument
@click.argument("id_", metavar="[ID]", required=False)
def explain(here: Here, queue: str, id_: str | None) -> None:
    """Tell why a task of QUEUE is not running: each reason with its cure, the weightiest first.

    Without ID, it is the first task that waits: the first ready one, or else the first delayed one.

    Columns: reason, finding, cure, and the time until that cure. With --json, one object has the task,
    its holder, its place in the order, the calls that wait, the workers, and the reasons.
    """
    with here.tasks(queue) as (database, found):
        if id_ is None:
            id_ = _first_that_waits(database, found)
            say(f"the first task that waits is {id_}")
        with refusing_missing(database, found, id_):
            explanation = found.explain(database, id_)
    if here.as_json:
        # asdict copies, and the data of a task may be an object that cannot be copied.
        rest = asdict(replace(explanation, task=Task("", TaskState.DONE, None)))
        here.print({**rest, "task": task_row(explanation.task)})
    else:
        here.show(_reasons(explanation), REASON_COLUMNS)


def _first_that_waits(database: Database, queue: TaskQueue) -> str:
    for state in (TaskState.READY, TaskState.DELAYED):
        if found := queue.tasks(database, state, 1):
            return found[0].id
    others = queue.statistics(database)["tasks"]
    raise Refused(f"no task of {queue.name!r} waits: {others['taken']} taken, {others['buried']} buried")


def _reasons(found: Explanation) -> Iterator[Row]:
    for reason in found.reasons:
        cure = in_this_place(reason.cure)
        wait_s = None if reason.at is None else max(0.0, reason.at - found.now)
        yield {"reason": reason.why, "text": reason.text, "cure": cure, "in": wait_s}


@command(cli)
@queue_argument
@id_argument
def follow(here: Here, queue: str, id_: str) -> None:
    """Print the state and the progress of a task of QUEUE, and again each time that the progress changes.

    After a cancel, the line says "cancelled".

    The command ends with the task, or by Ctrl-C. With --json, each line has all attributes of the task.
    """
    out = here.out()
    with here.tasks(queue) as (database, found):
        with refusing_missing(database, found, id_):
            task: Task | None = found.peek(database, id_)
        try:
            while task is not None:
                row = task_row(task)
                line = f"{row['state']}\t{progress_of(row)}\n"
                out.print(line_of(row) if here.as_json else line.encode())
                task = found.wait_for_progress(database, id_, task.fraction)
        except TaskNotFound:
            say(f"{id_} has ended{told_end(database, found, id_)}")


@command(cli)
@queue_argument
@id_argument
@click.option("--wait", "wait_s", type=WAIT, default=0.0, metavar="S", help="wait up to S seconds")
@click.option("--forget", is_flag=True, help="remove the result when it is printed")
def result(here: Here, queue: str, id_: str, wait_s: float, forget: bool) -> None:
    """Print the result of a task of QUEUE as JSON: the value that its handler returned.

    Only a task that was put with --result-ttl has one, for that time. The exit status is 1 without a result:
    standard error then says if the task has not ended, is buried, or ended in another way.
    With --json, an object has the `id` of the task and its `result`.
    """
    with here.tasks(queue) as (database, found):
        value = found.result(database, id_, wait_s)
        here.print({"id": id_, "result": value} if here.as_json else value)
        if forget:
            found.forget_result(database, id_)


ENDED_COLUMNS = columns(
    "id",
    "outcome",
    ended=time_in("ago_s"),
    attempts="attempts",
    ran=lambda row: "" if row["taken"] is None else span(row["ended"] - row["taken"]),
    key=json_in("key"),
)
REASON_COLUMNS = columns("reason", finding="text", cure="cure", **{"in": time_in("in")})
