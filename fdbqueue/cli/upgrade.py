"""`fdbqueue upgrade`: bring the queues of earlier releases to the key layout of this one."""

from collections.abc import Iterator
from dataclasses import replace

import click

from fdbqueue.cli.exits import Refused, say
from fdbqueue.cli.group import cli, in_a_place, json_option
from fdbqueue.cli.progress import PLAIN_EVERY_S
from fdbqueue.cli.session import Place
from fdbqueue.cli.show import Columns, Row, field, show
from fdbqueue.database import Database
from fdbqueue.errors import DefinitionUnreadable, OlderSessions
from fdbqueue.key_layout import LAYOUT
from fdbqueue.plurals import counted
from fdbqueue.signals import Signals
from fdbqueue.upgrading.upgrade import Upgrade, Work


@cli.command()
@click.option("--dry-run", is_flag=True, help="list the work, change nothing")
@json_option
@in_a_place
@click.pass_obj
def upgrade(signals: Signals, place: Place, dry_run: bool, as_json: bool) -> None:
    """Bring the queues of earlier releases to the key layout of this release.

    Stop all processes of earlier releases first: while a session of one lives, the command is refused.
    Processes of this release may go on. After an interruption or a kill, start it again: it goes on where it
    was.

    Columns: queue, kind, layout, entries, rewritten, problem. `entries`: tasks that are taken, delayed or
    buried; it looks at each. Status 1: refused, or a queue has a problem.
    """
    with place.database() as database:
        work = Upgrade(database, place.registry)
        found = work.plan()
        try:
            work.require_no_older_sessions()
        except OlderSessions as error:
            if not dry_run:
                raise Refused(str(error)) from None
            say(str(error))
        rows = [_row(one, 0) for one in found] if dry_run else _upgraded(signals, database, work, found)
        shown = list(rows)
        show(signals, shown, COLUMNS, as_json)
    left = [row for row in shown if row["problem"]]
    done = "would be upgraded" if dry_run else "upgraded"
    say(f"{counted(len(shown) - len(left), 'queue')} {done} to layout {LAYOUT}")
    if left:
        raise Refused(f"{counted(len(left), 'queue')} cannot be upgraded here")


def _upgraded(signals: Signals, database: Database, work: Upgrade, found: list[Work]) -> Iterator[Row]:
    for one in found:
        try:
            yield _row(one, 0 if one.problem else _rewritten(signals, database, work, one))
        except DefinitionUnreadable as error:  # a newer release has upgraded it meanwhile
            yield _row(replace(one, problem=str(error)), 0)


def _rewritten(signals: Signals, database: Database, work: Upgrade, one: Work) -> int:
    """Upgrade one queue, and return the number of rewritten tasks. A signal ends it between two steps."""
    monotonic = database.runtime.monotonic
    steps, next_s = work.steps(one), monotonic() + PLAIN_EVERY_S
    seen = rewritten = 0
    while True:
        with signals.deferred():
            step = next(steps, None)
        if step is None:
            return rewritten
        seen, rewritten = seen + step.entries, rewritten + step.rewritten
        if monotonic() >= next_s:
            say(f"{one.queue!r}: {seen} of {counted(one.entries, 'task')}")
            next_s = monotonic() + PLAIN_EVERY_S


def _row(one: Work, rewritten: int) -> Row:
    return {
        "queue": one.queue,
        "kind": one.kind,
        "layout": one.layout,
        "entries": one.entries,
        "rewritten": rewritten,
        "problem": one.problem,
    }


COLUMNS: Columns = {
    name: field(name) for name in ("queue", "kind", "layout", "entries", "rewritten", "problem")
}
