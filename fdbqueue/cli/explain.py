"""`fdbqueue explain`: why a task is not running."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import click

from fdbqueue.cli.ended import told_end
from fdbqueue.cli.exits import Refused
from fdbqueue.cli.group import cli, in_a_place, in_this_place, json_option, queue_argument, stdout_of
from fdbqueue.cli.rows import task_row
from fdbqueue.cli.session import Place
from fdbqueue.cli.show import Columns, Row, field, show, span
from fdbqueue.cli.values import line_of
from fdbqueue.errors import TaskNotFound
from fdbqueue.explanation import Explanation
from fdbqueue.signals import Signals
from fdbqueue.task import Task, TaskState

_NO_TASK = Task("", TaskState.DONE, None)


@cli.command()
@queue_argument
@click.argument("id_", metavar="ID")
@json_option
@in_a_place
@click.pass_obj
def explain(signals: Signals, place: Place, queue: str, id_: str, as_json: bool) -> None:
    """Tell why a task of QUEUE is not running: each reason with its cure, the weightiest first.

    Columns: reason, finding, cure, and the time until that cure. With --json, one object has the task,
    its holder, its place in the order, the calls that wait, the workers, and the reasons.
    """
    with place.tasks(queue) as (database, found):
        try:
            explanation = found.explain(database, id_)
        except TaskNotFound:
            raise Refused(f"no such task in {queue!r}: {id_}{told_end(database, found, id_)}") from None
    if as_json:
        stdout_of(signals).print(line_of(explanation_row(explanation)))
    else:
        show(signals, _rows(explanation), COLUMNS, as_json=False)


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
