"""`fdbqueue follow`: the progress of a task, each time that it changes."""

import click

from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Task
from fdbqueue.operate.cli.ended import told_end
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_argument, stdout_of
from fdbqueue.operate.cli.held import progress_of
from fdbqueue.operate.cli.rows import task_row
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.values import line_of


@cli.command()
@queue_argument
@click.argument("id_", metavar="ID")
@json_option
@in_a_place
@click.pass_obj
def follow(signals: Signals, place: Place, queue: str, id_: str, as_json: bool) -> None:
    """Print the state and the progress of a task of QUEUE, and again each time that the progress changes.

    After a cancel, the line says "cancelled".

    The command ends with the task, or by Ctrl-C. With --json, each line has all attributes of the task.
    """
    out = stdout_of(signals)
    with place.tasks(queue) as (database, found):
        try:
            task: Task | None = found.peek(database, id_)
        except TaskNotFound:
            raise Refused(f"no such task in {queue!r}: {id_}{told_end(database, found, id_)}") from None
        try:
            while task is not None:
                out.print(_line(task, as_json))
                task = found.wait_for_progress(database, id_, task.fraction)
        except TaskNotFound:
            say(f"{id_} has ended{told_end(database, found, id_)}")


def _line(task: Task, as_json: bool) -> bytes:
    if as_json:
        return line_of(task_row(task))
    return f"{task.state.name.lower()}\t{progress_of(task_row(task))}\n".encode()
