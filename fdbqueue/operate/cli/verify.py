"""`fdbqueue verify`: check that the stored keys agree with each other."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused, require_stdout, say
from fdbqueue.operate.cli.group import cli, in_a_place, in_this_place, json_option, queue_names, stdout_of
from fdbqueue.operate.cli.session import CREATE_TASKS, Place
from fdbqueue.operate.cli.show import Columns, Row, field, show
from fdbqueue.operate.cli.values import line_of
from fdbqueue.operate.verify.values import Finding, Verification
from fdbqueue.operate.verify.verify import verify as verify_keys

_ANSWERED_WITHIN_S = 60.0
"""A verification may run from a timer, so it does not wait for a cluster for ever."""


@cli.command()
@click.argument("queue", metavar="[QUEUE]", required=False, shell_complete=queue_names)
@click.option("--mend", is_flag=True, help="mend each contradiction that has one remedy")
@json_option
@in_a_place
@click.pass_obj
def verify(signals: Signals, place: Place, queue: str | None, mend: bool, as_json: bool) -> None:
    """Check that the stored keys of QUEUE, or of all queues, agree with each other.

    The queues may be in use. Columns: flaw, queue, finding, cure. With --json, one object has the findings,
    the parts that were not verified, and the numbers of queues and keys. Status: 1 if a finding is left; 2 if
    a cluster does not answer for a minute.
    """
    require_stdout()
    with place.database() as database:
        try:
            with place.answering(database, _ANSWERED_WITHIN_S):
                found = verify_keys(database, queue, root=place.root, mend=mend)
        except QueueNotFound:
            raise place.missing(database, queue or "", CREATE_TASKS) from None
    if as_json:
        stdout_of(signals).print(line_of(verification_row(found)))
    else:
        show(signals, _rows(found), COLUMNS, as_json=False)
    for sentence in found.uncompared:
        say(f"not verified: {sentence}")
    if not found.sound:
        raise Refused(_told(found))
    say(_told(found))


def verification_row(found: Verification) -> Row:
    """Return a verification as a row; keys are in hexadecimal."""
    rows = [{**asdict(finding), "key": finding.key.hex()} for finding in found.findings]
    return {**asdict(found), "findings": rows}


def _rows(found: Verification) -> Iterator[Row]:
    for finding in found.findings:
        cure = "mended" if finding.mended else in_this_place(finding.cure)
        yield {"flaw": finding.flaw, "queue": finding.queue, "text": _text(finding), "cure": cure}


def _text(finding: Finding) -> str:
    return f"{finding.text} (key {finding.key.hex()})"


def _told(found: Verification) -> str:
    count = len(found.findings)
    findings = counted(count, "finding") if count else "no finding"
    stopped = "" if found.whole else ", and the verification stopped there"
    return f"{counted(found.queues, 'queue')}, {counted(found.keys, 'key')}: {findings}{stopped}"


COLUMNS: Columns = {
    "flaw": field("flaw"),
    "queue": field("queue"),
    "finding": field("text"),
    "cure": field("cure"),
}
