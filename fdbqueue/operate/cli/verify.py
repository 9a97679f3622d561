"""The commands that check: `verify` the stored keys, `doctor` the database and the processes that use it."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError, QueueNotFound
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import ERROR, REFUSED, CommandError, Refused, require_stdout, say
from fdbqueue.operate.cli.group import Here, cli, command, in_this_place, queue_names
from fdbqueue.operate.cli.parameters import SecondsRange
from fdbqueue.operate.cli.session import CREATE_TASKS
from fdbqueue.operate.cli.show import Row, columns
from fdbqueue.operate.diagnosis.check import Severity
from fdbqueue.operate.diagnosis.examining import diagnose, diagnosis_without
from fdbqueue.operate.verify.values import Verification
from fdbqueue.operate.verify.verify import verify as verify_keys

WATCH = SecondsRange(min=0, max=limits.DOCTOR_WATCH_S_MAX)
_ANSWERED_WITHIN_S = 60.0
"""A verification may run from a timer, so it does not wait for a cluster for ever."""


@command(cli)
@click.argument("queue", metavar="[QUEUE]", required=False, shell_complete=queue_names)
@click.option("--mend", is_flag=True, help="mend each contradiction that has one remedy")
def verify(here: Here, queue: str | None, mend: bool) -> None:
    """Check that the stored keys of QUEUE, or of all queues, agree with each other.

    The queues may be in use. Columns: flaw, queue, finding, cure. With --json, one object has the findings,
    the parts that were not verified, and the numbers of queues and keys. Status: 1 if a finding is left; 2 if
    a cluster does not answer for a minute.
    """
    require_stdout()
    with here.database() as database:
        try:
            with here.answering(database, _ANSWERED_WITHIN_S):
                found = verify_keys(database, queue, root=here.root, mend=mend)
        except QueueNotFound:
            raise here.missing(database, queue or "", CREATE_TASKS) from None
    if here.as_json:
        rows = [{**asdict(finding), "key": finding.key.hex()} for finding in found.findings]
        here.print({**asdict(found), "findings": rows})
    else:
        here.show(_findings(found), columns("flaw", "queue", finding="text", cure="cure"))
    for sentence in found.uncompared:
        say(f"not verified: {sentence}")
    if not found.sound:
        raise Refused(_told(found))
    say(_told(found))


def _findings(found: Verification) -> Iterator[Row]:
    for one in found.findings:
        cure = "mended" if one.mended else in_this_place(one.cure)
        yield {
            "flaw": one.flaw,
            "queue": one.queue,
            "text": f"{one.text} (key {one.key.hex()})",
            "cure": cure,
        }


def _told(found: Verification) -> str:
    count = len(found.findings)
    findings = counted(count, "finding") if count else "no finding"
    stopped = "" if found.whole else ", and the verification stopped there"
    return f"{counted(found.queues, 'queue')}, {counted(found.keys, 'key')}: {findings}{stopped}"


@command(cli)
@click.option("--watch", type=WATCH, default=3.0, show_default=True, help="seconds between its two looks")
def doctor(here: Here, watch: float) -> None:
    """Check the database, its clients and its queues; tell the cure of each trouble.

    Columns: severity, check, result, cure. Status: 0 all is fine; 1 there is a warning or a failure; 2 the
    database does not answer. Clocks are compared of sessions that beat within --watch seconds; a session
    beats three times in its ttr.
    """
    try:
        with here.database() as database:
            found, status = diagnose(database, watch_s=watch, root=here.root), REFUSED
    except (CommandError, FdbQueueError) as error:
        text = error.message if isinstance(error, CommandError) else str(error)
        found, status = diagnosis_without(here.url, text), ERROR
    rows = ({**asdict(check), "cure": in_this_place(check.cure)} for check in found.checks)
    here.show(rows, columns("severity", check="name", result="text", cure="cure"))
    if found.severity != Severity.FINE:
        click.get_current_context().exit(status)
