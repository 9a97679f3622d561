"""`fdbqueue partitions`, `repartition` and `spread`: the parts of a queue, their number, their servers."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import click

from fdbqueue.core.database import Database
from fdbqueue.core.partitions import Partition, PartitionState, Repartition
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.signals import Interrupted
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import CommandError, Refused, require_stdout, say
from fdbqueue.operate.cli.group import Here, again, cli, command, queue_argument, queue_names
from fdbqueue.operate.cli.parameters import NUMBER, WAIT, SecondsRange
from fdbqueue.operate.cli.show import PLAIN_EVERY_S, Row, columns, per_second
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.operate.placement.spreading import (
    SHOW,
    Spread,
    Spreading,
    StorageServers,
    is_cluster,
    lines_for,
    lines_to_remove,
    owners_of_partitions,
    pieces_of,
    sharing,
)
from fdbqueue.operate.placement.spreading import dropped as dropped_in
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

LOOK_EVERY_S = 0.5
FDBCLI = "fdbcli"
FDBCLI_TIMEOUT_S = 60
BYTES_OF_A_RUN = 60_000
"""Commands in one start of fdbcli: the system limits the length of an argument to 128 kB."""
INTERVAL = SecondsRange(min=0, max=60)
TIMEOUT = SecondsRange(min=0, min_open=True)


@command(cli, queue_argument)
@click.option("--interval", type=INTERVAL, default=1.0, metavar="S", help="seconds between its looks [1]")
def partitions(here: Here, queue: str, interval: float) -> None:
    """List the partitions of QUEUE: their tasks, rates, and storage servers.

    Columns: number, state, ready, taken, buried, delayed, put/s, take/s, flag, team. `flag`: takes look there
    for ready tasks. `team`: on a cluster, the storage servers that have its keys. With --interval 0 there is
    one look, and no rates. Plain queues count no calls, so they have none.
    """
    with here.partitioned(queue) as (database, found):
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
    here.show(rows, PARTITION_COLUMNS)


def _row(found: Partition, before: Partition, elapsed_s: float, team: list[str] | None) -> Row:
    row = asdict(found)
    for verb in ("put", "take"):
        now, then = row[f"{verb}s"], getattr(before, f"{verb}s")
        row[f"{verb}_per_s"] = None if now is None or not elapsed_s else (now - then) / elapsed_s
    return {**row, "prefix": found.prefix.hex(), "team": team}


@command(cli, queue_argument)
@click.argument("number", type=NUMBER, metavar="N")
@click.option("--timeout", type=WAIT, metavar="S", help="wait S seconds for its end [no bound]")
def repartition(here: Here, queue: str, number: int, timeout: float | None) -> None:
    """Give QUEUE N partitions, while it is used, and wait until that is done.

    New tasks go to the new partitions at once. It is done when no task key has tasks that are ready or taken
    in an old partition. Status 1: not done within --timeout, or another repartition is under way. Any process
    that uses QUEUE goes on with it, and so does the same command.
    """
    waits_again = f"`{again('repartition', queue, str(number))}` waits again"
    with here.partitioned(queue) as (database, found):
        try:
            before, ended = _repartition(here, database, found, queue, number, timeout)
        except Interrupted:
            say(f"interrupted: {waits_again}")
            raise
    if not ended.is_finished and not here.as_json:
        raise Refused(f"{_told(queue, before, number)}, but not done: {waits_again}")
    here.tell(f"{_told(queue, before, number)}: done", {"queue": queue, **asdict(ended), "before": before})
    if not ended.is_finished:
        click.get_current_context().exit(Refused.exit_code)


def _repartition(
    here: Here, database: Database, found: Queue | TaskQueue, queue: str, number: int, timeout_s: float | None
) -> tuple[int, Repartition]:
    """Return the number of partitions at the beginning, and the last step. A signal ends it between two."""

    def step_on() -> Repartition:
        with here.signals.deferred():
            return found.repartition(database, number)

    monotonic = database.runtime.monotonic
    began_s = monotonic()
    ends_s = float("inf") if timeout_s is None else began_s + timeout_s
    next_s = began_s + PLAIN_EVERY_S
    first = step = step_on()
    while not step.is_finished and monotonic() < ends_s:
        if monotonic() >= next_s and not here.as_json:
            say(f"{_told(queue, first.before, number)}: {_left(found.partitions(database))}")
            next_s = monotonic() + PLAIN_EVERY_S
        database.runtime.sleep(min(LOOK_EVERY_S, max(0.0, ends_s - monotonic())))
        step = step_on()
    return first.before, step


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


@command(cli)
@click.argument("queue", metavar="[QUEUE]", required=False, shell_complete=queue_names)
@click.option("--apply", is_flag=True, help="run the lines with fdbcli, and wait for the moves")
@click.option("--receipts", is_flag=True, help="spread the receipts of its root in as many parts instead")
@click.option("--remove", is_flag=True, help="the lines that remove these boundaries")
@click.option("--dropped", is_flag=True, help="the lines that remove the boundaries of dropped queues")
@click.option("--timeout", type=TIMEOUT, default=300.0, metavar="S", help="S seconds for each move [300]")
def spread(
    here: Here, queue: str | None, apply: bool, receipts: bool, remove: bool, dropped: bool, timeout: float
) -> None:
    """Print the lines of fdbcli that put the partitions of QUEUE on different storage servers.

    With --apply, fdbcli runs them. Then the command waits until FoundationDB has moved the partitions, moves
    those on busy servers up to three times more, and lists each partition with its servers. Columns: number,
    team, shares (other partitions on the same team). Status 1: a server has more than its even part, or
    --timeout is over. Boundaries stay until `spread --remove --apply`; minutes after that, the keys come
    together again. Each move restarts the cluster's data distributor, which takes half a minute.
    Each transaction writes a receipt below the root: --receipts spreads those, for all queues of the root.
    Boundaries of a queue that was dropped stay, too: --dropped, without QUEUE, finds them with fdbcli.
    """
    require_stdout()
    if dropped:
        if queue is not None or receipts or remove:
            about = "spread --dropped is about all queues that were dropped: it takes --apply only"
            raise click.UsageError(about)
        _spread_dropped(here, apply)
        return
    if queue is None:
        raise click.UsageError("spread takes QUEUE, or --dropped")
    with here.partitioned(queue) as (database, found):
        _require_cluster(here, database)
        # Partitions that are not open only lose keys.
        opened = (one for one in found.partitions(database) if one.state == PartitionState.OPEN)
        prefixes = [one.prefix for one in opened]
        if receipts:
            prefixes = RootKeys(here.root).receipts_in(len(prefixes))
        if not apply:
            _print(here, lines_to_remove(prefixes) if remove else lines_for(pieces_of(prefixes)))
            return
        run_lines = _fdbcli(here.url)
        if remove:
            run_lines(lines_to_remove(prefixes))
            here.tell(f"{queue!r}: no boundaries", {"queue": queue, "removed": True})
            return
        servers = StorageServers(database)
        if not servers.are_settled():
            raise Refused("the cluster is not healthy, or moves data: see `fdbcli --exec status`")
        told = (lambda _: None) if here.as_json else say
        done = Spreading(servers, database.runtime, prefixes, run_lines, told, timeout).run()
    _report(here, done, timeout)


def _spread_dropped(here: Here, apply: bool) -> None:
    root = RootKeys(here.root)
    with here.database() as database:
        _require_cluster(here, database)
        run_lines = _fdbcli(here.url)
        # In this order: a queue that is created meanwhile is known.
        shown = run_lines([SHOW])
        ids = dropped_in(shown, root, {one.id for one in here.definitions(database)})
    lines = [line for id_ in ids for line in lines_to_remove([root.contents(id_).key()])]
    if not apply:
        _print(here, lines)
        return
    run_lines(lines)
    here.tell(f"no boundaries of {counted(len(ids), 'dropped queue')}", {"dropped": ids, "removed": True})


def _require_cluster(here: Here, database: Database) -> None:
    if not is_cluster(database):
        raise CommandError(f"{here.url} is a directory: only a FoundationDB cluster has storage servers")


def _print(here: Here, lines: Sequence[str]) -> None:
    out = here.out()
    for line in lines:
        out.print(line_of(line) if here.as_json else f"{line}\n".encode())


def _report(here: Here, done: Spread, timeout_s: float) -> None:
    groups = sharing(done.teams)
    others = {number: [one for one in group if one != number] for group in groups for number in group}
    rows = [
        {"number": number, "team": team, "shares": others.get(number, [])}
        for number, team in enumerate(done.teams)
    ]
    here.show(rows, SPREAD_COLUMNS)
    if not done.is_settled:
        raise Refused(f"the moves are not over after {timeout_s:g} s: the same command looks again")
    if done.crowded:
        busy = counted(len(done.crowded), "partition")
        raise Refused(f"still on busy servers: {busy}, as FoundationDB chooses servers by bytes")


def _fdbcli(url: str) -> Callable[[Sequence[str]], str]:
    """The function that runs lines in fdbcli, on the cluster of the URL. Raises CommandError."""
    program = shutil.which(FDBCLI)
    if program is None:
        raise CommandError("there is no fdbcli on the PATH: without --apply, the lines are printed for it")
    cluster_file = url.removeprefix("fdb:")
    start = [program, *(["-C", cluster_file] if cluster_file else []), "--exec"]

    def run_lines(lines: Sequence[str]) -> str:
        return "".join(_run([*start, ";".join(some)]) for some in _in_runs(lines))

    return run_lines


def _in_runs(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """The lines in parts that one start of fdbcli can have."""
    some: list[str] = []
    for line in lines:
        if some and sum(map(len, some)) + len(some) + len(line) > BYTES_OF_A_RUN:
            yield some
            some = []
        some.append(line)
    if some:
        yield some


def _run(command: list[str]) -> str:
    """Return the output. Raises CommandError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FDBCLI_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"fdbcli has not ended in {FDBCLI_TIMEOUT_S} s") from None
    if done.returncode:
        raise CommandError(f"fdbcli failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


PARTITION_COLUMNS = columns(
    *("number", "state", "ready", "taken", "buried", "delayed"),
    **{f"{verb}/s": per_second(f"{verb}_per_s") for verb in ("put", "take")},
    flag=lambda row: "flag" if row["may_be_ready"] else "",
    team=lambda row: " ".join(row["team"] or []),
)
SPREAD_COLUMNS = columns(
    "number",
    team=lambda row: " ".join(row["team"]),
    shares=lambda row: " ".join(map(str, row["shares"])),
)
