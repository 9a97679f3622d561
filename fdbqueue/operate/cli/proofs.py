"""The commands that check: `verify` the stored keys, `doctor` the database and the processes that use it.

And those that prove: `conformance`, of a program in any language; `demo`, of a fleet that is killed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.open import PRIVATE_URL, shared_url
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate import judge
from fdbqueue.operate.checks import Severity
from fdbqueue.operate.cli.commands import OUTER_ROOT, OUTER_SHARED, OUTER_URL
from fdbqueue.operate.cli.exits import ERROR, REFUSED, CommandError, Refused, require_stdout, say
from fdbqueue.operate.cli.frame import (
    Here,
    SecondsRange,
    UsablePath,
    cli,
    command,
    in_this_place,
    json_option,
    queue_names,
)
from fdbqueue.operate.cli.redacting import seen_check
from fdbqueue.operate.cli.show import Row, columns, show
from fdbqueue.operate.conformance import (
    Checked,
    Program,
    Vector,
    Verdict,
    checked,
    heard_result,
    stored_vectors,
    unescaped,
    vectors_in,
)
from fdbqueue.operate.demo import main
from fdbqueue.operate.diagnosis import diagnose, diagnosis_without
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
    with here.database() as database, here.answering(database, _ANSWERED_WITHIN_S):
        found = verify_keys(database, queue, root=here.root, mend=mend)
    if here.as_json:
        rows = [{**asdict(finding), "key": finding.key.hex()} for finding in found.findings]
        here.print({**asdict(found), "findings": rows})
    else:
        here.show(_findings(found), columns("flaw", "queue", finding="text", cure="cure"))
    for sentence in found.uncompared:
        say(f"not verified: {sentence}")
    if not found.sound:
        raise Refused(_told_contradictions(found))
    say(_told_contradictions(found))


def _findings(found: Verification) -> Iterator[Row]:
    for one in found.findings:
        cure = "mended" if one.mended else in_this_place(one.cure)
        yield {**asdict(one), "text": f"{one.text} (key {one.key.hex()})", "cure": cure}


def _told_contradictions(found: Verification) -> str:
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
    rows = ({**seen_check(check), "cure": in_this_place(check.cure)} for check in found.checks)
    here.show(rows, columns("severity", check="name", result="text", cure="cure"))
    if found.severity != Severity.FINE:
        click.get_current_context().exit(status)


TIMEOUT = SecondsRange(min=0, min_open=True, max=3_600)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT]...")
@click.option(
    "--only",
    multiple=True,
    metavar="KIND[/VERB]",
    help="only vectors of this kind, of this verb of a kind, or of this name; may be repeated",
)
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="seconds for each answer")
@click.option(
    "--vectors",
    "file",
    type=UsablePath(exists=True, dir_okay=False, path_type=Path),
    help="another file of vectors, by default that of this release",
)
@click.option("--consumer", metavar="URL", help="prove a worker on a database, killing it")
@json_option
@click.pass_obj
def conformance(
    signals: Signals,
    program: Sequence[str],
    only: Sequence[str],
    timeout: float,
    file: Path | None,
    consumer: str | None,
    as_json: bool,
) -> None:
    """Prove that PROGRAM reads and writes the keys of the layout as this library does.

    PROGRAM gets a line of JSON for each call: the keys before it, its time and its random bytes. It answers
    with a line: the keys after it, or its mutations (docs/conformance.md). Columns: verdict, vector, verb,
    difference. Rows are those that are not the same; --json has all. Status: 1 if the program differs, or
    has not answered.

    With --consumer, PROGRAM is a worker, of which processes run below a root of their own. Columns: verdict,
    kind, promise, seen.
    """
    if consumer is not None:
        if only or file is not None or consumer == PRIVATE_URL:
            wanted = "a database that processes share, and neither --only nor --vectors"
            raise click.UsageError(f"--consumer takes {wanted}")
        return _judge(signals, consumer, program, as_json)
    stored = _read(file)
    vectors = _selected([*vectors_in(stored)], only)
    start = partial(Program, program, timeout, RealRuntime())
    counts: Counter[Verdict] = Counter()
    try:
        rows = _rows(checked(start, stored["root"], vectors), counts, as_json)
        show(signals, rows, columns("verdict", "vector", "verb", "difference"), as_json)
    except OSError as error:
        raise CommandError(f"{program[0]}: {error.strerror}") from None
    told = _told_counts(counts, len(vectors))
    refusals = sum(vector.refuses for vector in vectors)
    # A program that knows no call refuses all queues: that alone proves something only if it was asked alone.
    proves_nothing = counts[Verdict.SAME] <= refusals < len(vectors)
    if counts[Verdict.DIFFERENT] or counts[Verdict.FAILED] or proves_nothing:
        raise Refused(told)
    say(told)
    return None


def _judge(signals: Signals, url: str, program: Sequence[str], as_json: bool) -> None:
    found: list[judge.Row] = []

    def rows() -> Iterator[Row]:
        for one in judge.judged(url, program):
            found.append(one)
            yield one._asdict()

    try:
        show(signals, rows(), columns("verdict", "kind", "promise", "seen"), as_json)
    except OSError as error:
        raise CommandError(f"{program[0]}: {error.strerror}") from None
    broken = sum(one.verdict == "broken" for one in found)
    if broken:
        raise Refused(f"{counted(len(found), 'promise')}: {broken} broken")
    say(f"{counted(len(found), 'promise')}: all kept")


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return stored_vectors()
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        [heard_result(one.returns) for one in vectors_in(found)]
        unescaped(found["root"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"{file} has no vectors: see operate/layout/vectors.schema.json") from None
    return found


def _selected(vectors: Sequence[Vector], only: Sequence[str]) -> list[Vector]:
    """Return the selected vectors, and refuse a selection that no vector fits."""
    for selected in only:
        if not any(vector.is_one_of(selected) for vector in vectors):
            kinds = ", ".join(dict.fromkeys(vector.kind for vector in vectors))
            raise CommandError(f"no vector is one of {selected!r}; the kinds are {kinds}")
    return [one for one in vectors if not only or any(one.is_one_of(selected) for selected in only)]


def _rows(found: Iterator[Checked], counts: Counter[Verdict], as_json: bool) -> Iterator[Row]:
    for one in found:
        counts[one.verdict] += 1
        row: dict[str, Any] = {"verdict": one.verdict, "vector": one.vector.name, "verb": one.vector.verb}
        if as_json:
            yield {**row, "kind": one.vector.kind, "differences": [*one.differences]}
        else:
            yield from ({**row, "difference": difference} for difference in one.differences)


def _told_counts(counts: Counter[Verdict], total: int) -> str:
    numbers = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    left = total - sum(counts.values())
    return f"{total} vectors: {numbers or 'none'}{f', {left} not asked' if left else ''}"


@cli.command()
@click.option("--url", metavar="URL", help="a database to run on, instead of a temporary directory")
@click.option("--tasks", type=click.IntRange(min=1), default=20_000, metavar="N", help="N tasks [20000]")
@click.pass_context
def demo(context: click.Context, url: str | None, tasks: int) -> int:
    """Run a fleet, kill and stall its processes, and check that each task counted once.

    The demo runs in a temporary directory, or below a root of its own at --url, and removes it at the end.

    Four processes count the lines of the source files of this Python's standard library. Each of N tasks is a
    part of a file. Meanwhile the demo kills processes (SIGKILL), or stops them for longer than their leases
    (SIGSTOP). One task cannot succeed, and must be buried. Status 1 if a task was lost or counted twice.
    """
    if context.meta[OUTER_ROOT] is not None:
        raise click.UsageError("demo has a root of its own: it takes no --root")
    where = url or context.meta[OUTER_URL]
    return main(shared_url(where) if where and context.meta[OUTER_SHARED] else where, tasks)
