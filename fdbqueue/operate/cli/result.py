"""`fdbqueue result`: the result of a task that was put with --result-ttl."""

import click

from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_argument, stdout_of
from fdbqueue.operate.cli.parameters import WAIT
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.values import line_of


@cli.command()
@queue_argument
@click.argument("id_", metavar="ID")
@click.option("--wait", "wait_s", type=WAIT, default=0.0, metavar="S", help="wait up to S seconds")
@click.option("--forget", is_flag=True, help="remove the result when it is printed")
@json_option
@in_a_place
@click.pass_obj
def result(
    signals: Signals, place: Place, queue: str, id_: str, wait_s: float, forget: bool, as_json: bool
) -> None:
    """Print the result of a task of QUEUE as JSON: the value that its handler returned.

    Only a task that was put with --result-ttl has one, for that time. The exit status is 1 without a result:
    standard error then says if the task has not ended, is buried, or ended in another way.
    With --json, an object has the `id` of the task and its `result`.
    """
    with place.tasks(queue) as (database, found):
        value = found.result(database, id_, wait_s)
        stdout_of(signals).print(line_of({"id": id_, "result": value} if as_json else value))
        if forget:
            found.forget_result(database, id_)
