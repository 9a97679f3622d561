"""`fdbqueue explain`: why a task is not running."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.explanation import Explanation
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Task, TaskState
from fdbqueue.operate.cli.ended import told_end
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import cli, in_a_place, in_this_place, json_option, queue_argument, stdout_of
from fdbqueue.operate.cli.rows import task_row
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, span
from fdbqueue.operate.cli.values import line_of
from fdbqueue.tasks.queue import TaskQueue

_NO_TASK = Task("", TaskState.DONE, None)


@cli.command()
@queue_argument
@click.argument("id_", metavar="[ID]", required=False)
@json_option
@in_a_place
@click.pass_obj
def explain(signals: Signals, place: Place, queue: str, id_: str | None, as_json: bool) -> None:
    """Tell why a task of QUEUE is not running: each reason with its cure, the weightiest first.

    Without ID, it is the first task that waits: the first ready one, or else the first delayed one.

    Columns: reason, finding, cure, and the time until that cure. With --json, one object has the task,
    its holder, its place in the order, the calls that wait, the workers, and the reasons.
    """
    with place.tasks(queue) as (database, found):
        if id_ is None:
            id_ = _first_that_waits(database, found)
            say(f"the first task that waits is {id_}")
        try:
            explanation = found.explain(database, id_)
        except TaskNotFound:
            raise Refused(f"no such task in {queue!r}: {id_}{told_end(database, found, id_)}") from None
    if as_json:
        stdout_of(signals).print(line_of(explanation_row(explanation)))
    else:
        show(signals, _rows(explanation), COLUMNS, as_json=False)


def _first_that_waits(database: Database, queue: TaskQueue) -> str:
    for state in (TaskState.READY, TaskState.DELAYED):
        if found := queue.tasks(database, state, 1):
            return found[0].id
    others = queue.statistics(database)["tasks"]
    raise Refused(f"no task of {queue.name!r} waits: {others['taken']} taken, {others['buried']} buried")


def explanation_row(found: Explanation) -> Row:
    # asdict copies, and the data of a task may be an object that cannot be copied.
    rest = asdict(replace(found, task=_NO_TASK))
    return {**rest, "task": task_row(found.task)}


def _rows(found: Explanation) -> Iterator[Row]:
    for reason in found.reasons:
        cure = in_this_place(reason.cure)
        wait_s = None if reason.at is None else max(0.0, reason.at - found.now)
        yield {"reason": reason.why, "text": reason.text, "cure": cure, "in": wait_s}


COLUMNS: Columns = {
    "reason": field("reason"),
    "finding": field("text"),
    "cure": field("cure"),
    "in": lambda row: span(row["in"]),
}
