"""`fdbqueue doctor`: checks of the database, of the processes that use it, and of its queues."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.exits import ERROR, REFUSED, CommandError
from fdbqueue.operate.cli.group import cli, in_a_place, in_this_place, json_option
from fdbqueue.operate.cli.parameters import SecondsRange
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show
from fdbqueue.operate.diagnosis.check import Diagnosis, Severity
from fdbqueue.operate.diagnosis.examining import diagnose, diagnosis_without

WATCH = SecondsRange(min=0, max=limits.DOCTOR_WATCH_S_MAX)


@cli.command()
@click.option("--watch", type=WATCH, default=3.0, show_default=True, help="seconds between its two looks")
@json_option
@in_a_place
@click.pass_obj
@click.pass_context
def doctor(context: click.Context, signals: Signals, place: Place, watch: float, as_json: bool) -> None:
    """Check the database, its clients and its queues; tell the cure of each trouble.

    Columns: severity, check, result, cure. Status: 0 all is fine; 1 there is a warning or a failure; 2 the
    database does not answer. Clocks are compared of sessions that beat within --watch seconds; a session
    beats three times in its ttr.
    """
    try:
        with place.database() as database:
            found, status = diagnose(database, watch_s=watch, root=place.root), REFUSED
    except (CommandError, FdbQueueError) as error:
        found, status = diagnosis_without(place.url, _text_of(error)), ERROR
    show(signals, _rows(found), COLUMNS, as_json)
    if found.severity != Severity.FINE:
        context.exit(status)


def _text_of(error: Exception) -> str:
    return error.message if isinstance(error, CommandError) else str(error)


def _rows(found: Diagnosis) -> Iterator[Row]:
    for check in found.checks:
        yield {**asdict(check), "cure": in_this_place(check.cure)}


COLUMNS: Columns = {
    "severity": field("severity"),
    "check": field("name"),
    "result": field("text"),
    "cure": field("cure"),
}
