"""`fdbqueue partitions` and `fdbqueue repartition`: the parts of a queue, and their number."""

import shlex
from collections.abc import Callable
from dataclasses import asdict

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.partitions.looks import Partition, PartitionState, Repartition
from fdbqueue.core.signals import Interrupted, Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import cli, in_a_place, in_this_place, json_option, queue_argument
from fdbqueue.operate.cli.parameters import WAIT, SecondsRange
from fdbqueue.operate.cli.progress import PLAIN_EVERY_S
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, tell
from fdbqueue.operate.placement.owners import owners_of_partitions
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

LOOK_EVERY_S = 0.5
INTERVAL = SecondsRange(min=0, max=60)
NUMBER = click.IntRange(1, limits.PARTITIONS_MAX)


@cli.command()
@queue_argument
@click.option("--interval", type=INTERVAL, default=1.0, metavar="S", help="seconds between its looks [1]")
@json_option
@in_a_place
@click.pass_obj
def partitions(signals: Signals, place: Place, queue: str, interval: float, as_json: bool) -> None:
    """List the partitions of QUEUE: their tasks, rates, and storage servers.

    Columns: number, state, ready, taken, buried, delayed, put/s, take/s, flag, team. `flag`: takes look there
    for ready tasks. `team`: on a cluster, the storage servers that have its keys. With --interval 0 there is
    one look, and no rates. Plain queues count no calls, so they have none.
    """
    with place.partitioned(queue) as (database, found):
        before, began_s = found.partitions(database), database.runtime.monotonic()
        if interval:
            database.runtime.sleep(interval)
        now = found.partitions(database) if interval else before
        elapsed_s = database.runtime.monotonic() - began_s if interval else 0.0
        teams = owners_of_partitions(database, [one.prefix for one in now])
    counted = {one.number: one for one in before}
    rows = [
        _row(one, counted.get(one.number, one), elapsed_s, team) for one, team in zip(now, teams, strict=True)
    ]
    show(signals, rows, COLUMNS, as_json)


@cli.command()
@queue_argument
@click.argument("number", type=NUMBER, metavar="N")
@click.option("--timeout", type=WAIT, metavar="S", help="wait S seconds for its end [no bound]")
@json_option
@in_a_place
@click.pass_obj
def repartition(
    signals: Signals, place: Place, queue: str, number: int, timeout: float | None, as_json: bool
) -> None:
    """Give QUEUE N partitions, while it is used, and wait until that is done.

    New tasks go to the new partitions at once. It is done when no task key has tasks that are ready or taken
    in an old partition. Status 1: not done within --timeout, or another repartition is under way. Any process
    that uses QUEUE goes on with it, and so does the same command.
    """
    with place.partitioned(queue) as (database, found):
        try:
            before, ended = _repartition(signals, database, found, queue, number, timeout, as_json)
        except Interrupted:
            say(f"interrupted: `{_again(queue, number)}` waits again")
            raise
    row = {"queue": queue, **asdict(ended), "before": before}
    if not ended.is_finished and not as_json:
        raise Refused(f"{_told(queue, before, number)}, but not done: `{_again(queue, number)}` waits again")
    tell(signals, f"{_told(queue, before, number)}: done", row, as_json)
    if not ended.is_finished:
        click.get_current_context().exit(Refused.exit_code)


def _repartition(
    signals: Signals,
    database: Database,
    queue: Queue | TaskQueue,
    name: str,
    number: int,
    timeout_s: float | None,
    as_json: bool,
) -> tuple[int, Repartition]:
    """Return the number of partitions at the beginning, and the last step. A signal ends it between two."""
    monotonic = database.runtime.monotonic
    began_s = next_s = monotonic()
    ends_s = float("inf") if timeout_s is None else began_s + timeout_s
    next_s += PLAIN_EVERY_S
    first = step = _step(signals, database, queue, number)
    while not step.is_finished and monotonic() < ends_s:
        if monotonic() >= next_s and not as_json:
            say(f"{_told(name, first.before, number)}: {_left(queue.partitions(database))}")
            next_s = monotonic() + PLAIN_EVERY_S
        database.runtime.sleep(min(LOOK_EVERY_S, max(0.0, ends_s - monotonic())))
        step = _step(signals, database, queue, number)
    return first.before, step


def _step(signals: Signals, database: Database, queue: Queue | TaskQueue, number: int) -> Repartition:
    with signals.deferred():
        return queue.repartition(database, number)


def _told(queue: str, before: int, number: int) -> str:
    return f"{queue!r} goes from {before} to {counted(number, 'partition')}"


def _left(found: list[Partition]) -> str:
    closing = [one for one in found if one.state == PartitionState.CLOSING]
    of = closing or found
    taken = counted(sum(one.taken for one in of), "taken task")
    count = f"{counted(sum(one.ready for one in of), 'ready task')} and {taken}"
    if not closing:
        return f"task keys wait until takes have drained them from old partitions; there are {count} in all"
    return f"{counted(len(closing), 'partition')} to close, with {count}"


def _again(queue: str, number: int) -> str:
    name = ["--", queue, str(number)] if queue.startswith("-") else [queue, str(number)]
    return in_this_place(shlex.join(["fdbqueue", "repartition", *name]))


def _row(found: Partition, before: Partition, elapsed_s: float, team: list[str] | None) -> Row:
    row = asdict(found)
    for verb in ("put", "take"):
        now, then = row[f"{verb}s"], getattr(before, f"{verb}s")
        row[f"{verb}_per_s"] = None if now is None or not elapsed_s else (now - then) / elapsed_s
    return {**row, "prefix": found.prefix.hex(), "team": team}


def _rate(verb: str) -> Callable[[Row], str]:
    return lambda row: "" if row[f"{verb}_per_s"] is None else f"{row[f'{verb}_per_s']:,.1f}"


COLUMNS: Columns = {
    "number": field("number"),
    **{name: field(name) for name in ("state", "ready", "taken", "buried", "delayed")},
    **{f"{verb}/s": _rate(verb) for verb in ("put", "take")},
    "flag": lambda row: "flag" if row["may_be_ready"] else "",
    "team": lambda row: " ".join(row["team"] or []),
}
