"""Commands on the tasks of a queue: looks at one or at many, and the verbs that need no lease."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskFailed, TaskNotFound, UnsupportedOption
from fdbqueue.core.page import Page
from fdbqueue.core.task import EndedTask, Explanation, Task, TaskState
from fdbqueue.core.visible import counted, key_of, value_of
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.changing import (
    Pairs,
    change_where,
    filters_in,
    purge_all,
    requires_where,
    rest_of,
    search_options,
    where_options,
)
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.frame import (
    WAIT,
    Here,
    Parameter,
    cli,
    command,
    first_option,
    in_this_place,
    queue_argument,
    yes_option,
)
from fdbqueue.operate.cli.redacting import in_environment, require_open, seen
from fdbqueue.operate.cli.show import (
    STATES,
    Row,
    columns,
    history_row,
    holder_row,
    json_in,
    most_of,
    paged,
    processes_of,
    progress_of,
    span,
    task_row,
    time_in,
)
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.rows import cure_of_buried

id_argument = click.argument("id_", metavar="ID")


@command(cli, queue_argument)
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
    if key is not None:
        require_open("--key", "key")
    with here.tasks(queue) as (database, found):
        tasks = _with_ids(database, found, ids) if ids else _last(database, found, of_key, count)
        now = database.runtime.now
        rows = (
            {**asdict(task), "key": seen("key", task.key), "ago_s": max(0.0, now() - task.ended)}
            for task in tasks
        )
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
    see: Callable[..., Page[EndedTask]] = queue.ended_tasks if of_key is None else queue.ended_tasks_of
    read = partial(see, database, *(of_key or ()))
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


@command(cli, queue_argument)
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
            row, redaction = task_row(explanation.task, found.options), in_environment()
            explanation = explanation if redaction is None else redaction.explanation(explanation)
    if here.as_json:
        # asdict copies, and the data of a task may be an object that cannot be copied.
        rest = asdict(replace(explanation, task=Task("", TaskState.DONE, None)))
        here.print({**rest, "task": row})
    else:
        here.show(_reasons(explanation), REASON_COLUMNS)


def _first_that_waits(database: Database, queue: TaskQueue) -> str:
    for state in (TaskState.READY, TaskState.DELAYED):
        if found := queue.tasks(database, state, 1):
            return found[0].id
    others = queue.statistics(database)["tasks"]
    look = f" (`fdbqueue dead classes {queue.name}`)" if others["buried"] else ""
    if 2 * others["buried"] > others["total"] >= (queue.options["capacity"] or math.inf):
        look = f"; it is full.{cure_of_buried(queue.name)}"
    if lost := others["ready"]:
        see = in_this_place(f"`fdbqueue verify {queue.name}`")
        raise Refused(f"no task of {queue.name!r} stands in line, but {lost:,} counted as ready: see {see}")
    told = f"{others['taken']} taken, {others['buried']} buried{in_this_place(look)}"
    raise Refused(f"no task of {queue.name!r} waits: {told}")


def _reasons(found: Explanation) -> Iterator[Row]:
    for reason in found.reasons:
        cure = in_this_place(reason.cure)
        wait_s = None if reason.at is None else max(0.0, reason.at - found.now)
        yield {"reason": reason.why, "text": reason.text, "cure": cure, "in": wait_s}


@command(cli, queue_argument, id_argument)
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
                row = task_row(task, found.options)
                line = f"{row['state']}\t{progress_of(row)}\n"
                out.print(line_of(row) if here.as_json else line.encode())
                task = found.wait_for_progress(database, id_, task.fraction)
        except TaskNotFound:
            say(f"{id_} has ended{told_end(database, found, id_)}")


@command(cli, queue_argument, id_argument)
@click.option("--wait", "wait_s", type=WAIT, default=0.0, metavar="S", help="wait up to S seconds")
@click.option("--forget", is_flag=True, help="remove the result when it is printed")
def result(here: Here, queue: str, id_: str, wait_s: float, forget: bool) -> None:
    """Print the result of a task of QUEUE as JSON: the value that its handler returned.

    Only a task that was put with --result-ttl has one, for that time. The exit status is 1 without a result:
    standard error then says if the task has not ended, is buried, or ended in another way.
    With --json, an object has the `id` of the task and its `result`.
    """
    with here.tasks(queue) as (database, found):
        try:
            value = seen("result", found.result(database, id_, wait_s))
        except TaskFailed:  # it has a short form of the failure
            if in_environment():
                raise Refused(f"task {id_} of {queue!r} is buried, with a failure that is hidden") from None
            raise
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


ids_argument = click.argument("ids", nargs=-1, metavar="[ID...]")


@command(cli, queue_argument)
@click.option("--state", type=click.Choice(list(STATES)), help="[ready]")
@first_option
@search_options
def tasks(
    here: Here, queue: str, state: str | None, count: int, where: Pairs, after: str | None, look: int | None
) -> None:
    """List the first tasks of QUEUE in a state, in order; with --where, those that match, in any state.

    Columns: id, age, attempts, the most failures and their source, key, data, last error; for taken tasks
    also the progress, with "cancelled" after a cancel, and the holder. With --json, each task has all its
    attributes; `history` has the time and the error of each failed attempt that is kept, with its traceback
    or the output of its command; `steps_done` has the names of its steps; `holder` has the session of a taken
    task, its processes and its last heartbeat. If more tasks follow, standard error says so.

    Filters are those of `change`, and of --where state=taken. With one that has no index, such as data.PATH,
    the command looks at the first 10000 tasks, and tells how to go on.
    """
    if not where and (after or look):
        raise click.UsageError("--after and --look stand beside --where")
    if where and state:
        raise click.UsageError(f"--state stands without --where: use --where state={state}")
    filters, wanted = filters_in(where), STATES[state or "ready"]
    with here.tasks(queue) as (database, found):
        if where:
            answer = found.search(database, filters, after=after, look=look, most=count)
            here.show(_rows(database, found, answer.tasks), {**columns("id", "state"), **TAKEN_COLUMNS})
            if answer.after is not None:
                say(rest_of(answer, found.statistics(database)["tasks"]["total"]))
            return
        read = paged(partial(found.tasks, database, wanted), count, f"more tasks follow the first {count}")
        shown = TAKEN_COLUMNS if wanted == TaskState.TAKEN else TASK_COLUMNS
        here.show(_rows(database, found, read), shown)


def _rows(database: Database, queue: TaskQueue, tasks: Iterable[Task]) -> Iterator[Row]:
    for task in tasks:
        age_s = max(0.0, database.runtime.now() - task.created)
        holder = holder_row(database, queue, task)
        row, history = task_row(task, queue.options), history_row(database, queue, task)
        yield {**row, "age_s": age_s, **history, "holder": holder}


@command(cli, queue_argument)
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="the first N [1]")
@click.option("--all", "everything", is_flag=True, help="all buried tasks")
@where_options
def kick(here: Here, queue: str, count: int | None, everything: bool, where: Pairs, **walk: Any) -> None:
    """Make the first buried tasks of QUEUE ready again, or those that match (see `change`)."""
    if where or any(walk.values()):
        requires_where(everything or count is not None, where, walk)
        change_where(here, queue, where, walk, verb="kick")
        return
    if everything and count is not None:
        raise click.UsageError("kick takes -n N or --all, not both")
    with here.tasks(queue) as (database, found):
        buried = found.statistics(database)["tasks"]["buried"]
        most = buried if everything else min(1 if count is None else count, buried)
        kicked = late.terminal.step_by_step(here.signals, "kicking", most, partial(found.kick, database))
        here.counts(kicked)
    here.tell(f"{kicked} kicked", {"queue": queue, "kicked": kicked})


no_trash_option = click.option("--no-trash", is_flag=True, help="remove them for good")


def _verb_of_each(
    verb: Callable[[TaskQueue, Database, str], Task], done: str, told: str, *more: Parameter
) -> None:
    """Make a command that applies `verb` to each task."""

    @command(cli, queue_argument, ids_argument, *more, name=verb.__name__, help=told)
    @where_options
    def each(here: Here, queue: str, ids: tuple[str, ...], where: Pairs, **walk: Any) -> None:
        requires_where(bool(ids), where, walk)
        into_trash = not walk.pop("no_trash", True)
        if where:
            change_where(here, queue, where, walk, verb=verb.__name__, into_trash=into_trash)
        else:
            do_each(here, queue, ids, verb, done)


def do_each(
    here: Here, queue: str, ids: tuple[str, ...], verb: Callable[[TaskQueue, Database, str], Task], done: str
) -> None:
    """Apply `verb` to each task. Missing tasks are reported at the end."""
    missing = []
    with here.tasks(queue) as (database, found):
        for id_ in ids:
            try:
                with here.signals.deferred():
                    task = verb(found, here.about(database, id_), id_)
            except TaskNotFound:
                missing.append(f"{id_}{told_end(database, found, id_)}")
            else:
                asked = "" if task.cancel_asked is None else ": it is taken, and ends with its lease"
                here.tell(f"{task.id} {done}{asked}", task_row(task, found.options))
    if missing:
        raise Refused(f"no such task in {queue!r}: {', '.join(missing)}")


_CANCEL = """End tasks. The handler of a taken one learns of it at the next heartbeat of its worker.

A taken task ends with its lease: no other attempt begins. A command of `work --exec` is killed. With
--where, waiting tasks that match end (see `change`).
"""
_DELETE = """Remove tasks, in any state; with --where, waiting tasks that match (see `change`).

For a day, `fdbqueue trash restore` puts back those of --where.
"""
_verb_of_each(TaskQueue.cancel, "cancelled", _CANCEL)
_verb_of_each(TaskQueue.delete, "deleted", _DELETE, no_trash_option)


@command(cli, queue_argument, id_argument)
@click.argument("result", metavar="[RESULT]", required=False)
@click.option("--text", "as_text", is_flag=True, help="take RESULT as text, never as JSON")
def complete(here: Here, queue: str, id_: str, result: str | None, as_text: bool) -> None:
    """Complete a task of QUEUE that its handler has handed off: its work is done.

    RESULT is JSON, or else text; a task that was put with --result-ttl keeps it.
    """
    try:
        value = None if result is None else value_of(result, as_text)
    except ValueError as reason:
        raise click.BadParameter(str(reason), param_hint="RESULT") from None
    with here.tasks(queue) as (database, found), refusing_missing(database, found, id_):
        task = found.complete(database, id_, value)
        row = task_row(task, found.options)
    here.tell(f"{id_} completed", row)


@command(cli, queue_argument, id_argument)
@click.argument("reason")
@click.option("--delay", type=WAIT, metavar="S", help="ready again in S seconds [0; the backoff in force]")
def fail(here: Here, queue: str, id_: str, reason: str, delay: float | None) -> None:
    """Fail the attempt of a task of QUEUE that its handler has handed off, for this REASON.

    The last attempt buries it, if it or QUEUE has --attempts.
    """
    with here.tasks(queue) as (database, found), refusing_missing(database, found, id_):
        task = found.fail(database, id_, reason, delay=delay)
        row = task_row(task, found.options)
    here.tell(f"{id_} failed", row)


@command(cli, queue_argument, name="release-all")
def release_all(here: Here, queue: str) -> None:
    """Release the taken tasks of QUEUE: their leases end, and they are ready again.

    It releases as many tasks as are taken when it begins, because running workers take tasks again.
    """
    with here.tasks(queue) as (database, found):
        taken, release = found.statistics(database)["tasks"]["taken"], partial(found.release_some, database)
        done = late.terminal.step_by_step(here.signals, "releasing", taken, release)
        here.counts(done)
    here.tell(f"{done} released", {"queue": queue, "released": done})


@command(cli, queue_argument, no_trash_option, yes_option)
def truncate(here: Here, queue: str, no_trash: bool, yes: bool) -> None:
    """Remove all tasks of QUEUE, in any state; taken ones, too.

    For a day, `fdbqueue trash restore` puts them back. Tasks are removed in bounded transactions, so other
    calls do not wait. After an interruption, the tasks that were not removed yet are left.
    """
    with here.tasks(queue) as (database, found):
        there = found.statistics(database)["tasks"]["total"]
        if not yes:
            raise Refused(f"truncate would remove {counted(there, 'task')} of {queue!r}: confirm with --yes")
        if no_trash:
            remove = partial(found.truncate_some, database)
            removed = late.terminal.step_by_step(here.signals, "removing", there, remove)
        else:
            removed = purge_all(here, database, found, there)
        here.counts(removed)
    here.tell(f"{removed} removed", {"queue": queue, "removed": removed})


def _last_error(row: Row) -> str:
    if not row["history"]:
        return ""
    last = row["history"][-1]
    return f"{last['error']}: {last['message']}" if last["message"] else str(last["error"])


TASK_COLUMNS = {
    **columns("id", age=time_in("age_s"), attempts="attempts", most=most_of, key=json_in("key")),
    "data": json_in("data", null=True),
    "last error": _last_error,
}
TAKEN_COLUMNS = {**TASK_COLUMNS, "progress": progress_of, "holder": processes_of}
