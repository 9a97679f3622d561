"""The commands that prove: `conformance`, of a program in any language; `demo`, of a fleet that is killed."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from fdbqueue.core.open import shared_url
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.commands import OUTER_ROOT, OUTER_SHARED, OUTER_URL
from fdbqueue.operate.cli.exits import CommandError, Refused, say
from fdbqueue.operate.cli.group import cli, json_option
from fdbqueue.operate.cli.parameters import SecondsRange, UsablePath
from fdbqueue.operate.cli.show import Row, columns, show
from fdbqueue.operate.conformance.checking import Checked, Verdict, checked
from fdbqueue.operate.conformance.program import Program
from fdbqueue.operate.conformance.vectors import Vector, heard_result, stored_vectors, unescaped, vectors_in
from fdbqueue.operate.demo import main

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
@json_option
@click.pass_obj
def conformance(
    signals: Signals,
    program: Sequence[str],
    only: Sequence[str],
    timeout: float,
    file: Path | None,
    as_json: bool,
) -> None:
    """Prove that PROGRAM reads and writes the keys of the layout as this library does.

    PROGRAM gets a line of JSON for each call: the keys before it, its time and its random bytes. It answers
    with a line: the keys after it, or its mutations (docs/conformance.md). Columns: verdict, vector, verb,
    difference. Rows are those that are not the same; --json has all. Status: 1 if the program differs, or
    has not answered.
    """
    stored = _read(file)
    vectors = _selected([*vectors_in(stored)], only)
    start = partial(Program, program, timeout, RealRuntime())
    counts: Counter[Verdict] = Counter()
    try:
        rows = _rows(checked(start, stored["root"], vectors), counts, as_json)
        show(signals, rows, columns("verdict", "vector", "verb", "difference"), as_json)
    except OSError as error:
        raise CommandError(f"{program[0]}: {error.strerror}") from None
    told = _told(counts, len(vectors))
    refusals = sum(vector.refuses for vector in vectors)
    # A program that knows no call refuses all queues: that alone proves something only if it was asked alone.
    proves_nothing = counts[Verdict.SAME] <= refusals < len(vectors)
    if counts[Verdict.DIFFERENT] or counts[Verdict.FAILED] or proves_nothing:
        raise Refused(told)
    say(told)


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


def _told(counts: Counter[Verdict], total: int) -> str:
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
