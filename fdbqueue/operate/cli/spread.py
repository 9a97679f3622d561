"""`fdbqueue spread`: boundaries that put the partitions of a queue on different storage servers."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence

import click

from fdbqueue.core.database import Database
from fdbqueue.core.partitions.looks import PartitionState
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import CommandError, Refused, require_stdout, say
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_names, stdout_of
from fdbqueue.operate.cli.parameters import SecondsRange
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, field, show, tell
from fdbqueue.operate.cli.values import line_of
from fdbqueue.operate.placement.boundaries import dropped as dropped_in
from fdbqueue.operate.placement.boundaries import lines_for, lines_to_remove, pieces_of, sharing
from fdbqueue.operate.placement.owners import is_cluster
from fdbqueue.operate.placement.spreading import SHOW, Spread, Spreading, StorageServers
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

FDBCLI = "fdbcli"
FDBCLI_TIMEOUT_S = 60
BYTES_OF_A_RUN = 60_000
"""Commands in one start of fdbcli: the system limits the length of an argument to 128 kB."""
TIMEOUT = SecondsRange(min=0, min_open=True)


@cli.command()
@click.argument("queue", metavar="[QUEUE]", required=False, shell_complete=queue_names)
@click.option("--apply", is_flag=True, help="run the lines with fdbcli, and wait for the moves")
@click.option("--receipts", is_flag=True, help="spread the receipts of its root in as many parts instead")
@click.option("--remove", is_flag=True, help="the lines that remove these boundaries")
@click.option("--dropped", is_flag=True, help="the lines that remove the boundaries of dropped queues")
@click.option("--timeout", type=TIMEOUT, default=300.0, metavar="S", help="S seconds for each move [300]")
@json_option
@in_a_place
@click.pass_obj
def spread(
    signals: Signals,
    place: Place,
    queue: str | None,
    apply: bool,
    receipts: bool,
    remove: bool,
    dropped: bool,
    timeout: float,
    as_json: bool,
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
            raise click.UsageError(
                "spread --dropped is about all queues that were dropped: it takes --apply only"
            )
        _spread_dropped(signals, place, apply, as_json)
        return
    if queue is None:
        raise click.UsageError("spread takes QUEUE, or --dropped")
    with place.partitioned(queue) as (database, found):
        _require_cluster(place, database)
        prefixes = _prefixes(database, found)
        if receipts:
            prefixes = RootKeys(place.root).receipts_in(len(prefixes))
        if not apply:
            lines = lines_to_remove(prefixes) if remove else lines_for(pieces_of(prefixes))
            _print(signals, lines, as_json)
            return
        run_lines = _fdbcli(place.url)
        if remove:
            run_lines(lines_to_remove(prefixes))
            tell(signals, f"{queue!r}: no boundaries", {"queue": queue, "removed": True}, as_json)
            return
        servers = StorageServers(database)
        if not servers.are_settled():
            raise Refused("the cluster is not healthy, or moves data: see `fdbcli --exec status`")
        told = _quiet if as_json else say
        done = Spreading(servers, database.runtime, prefixes, run_lines, told, timeout).run()
    _report(signals, done, timeout, as_json)


def _spread_dropped(signals: Signals, place: Place, apply: bool, as_json: bool) -> None:
    root = RootKeys(place.root)
    with place.database() as database:
        _require_cluster(place, database)
        run_lines = _fdbcli(place.url)
        # In this order: a queue that is created meanwhile is known.
        shown = run_lines([SHOW])
        ids = dropped_in(shown, root, {one.id for one in place.definitions(database)})
    lines = [line for id_ in ids for line in lines_to_remove([root.contents(id_).key()])]
    if not apply:
        _print(signals, lines, as_json)
        return
    run_lines(lines)
    told = f"no boundaries of {counted(len(ids), 'dropped queue')}"
    tell(signals, told, {"dropped": ids, "removed": True}, as_json)


def _require_cluster(place: Place, database: Database) -> None:
    if not is_cluster(database):
        raise CommandError(f"{place.url} is a directory: only a FoundationDB cluster has storage servers")


def _prefixes(database: Database, queue: Queue | TaskQueue) -> list[bytes]:
    """The prefixes of the open partitions: others only lose keys."""
    found = queue.partitions(database)
    return [one.prefix for one in found if one.state == PartitionState.OPEN]


def _print(signals: Signals, lines: Sequence[str], as_json: bool) -> None:
    out = stdout_of(signals)
    for line in lines:
        out.print(line_of(line) if as_json else f"{line}\n".encode())


def _report(signals: Signals, done: Spread, timeout_s: float, as_json: bool) -> None:
    groups = sharing(done.teams)
    others = {number: [one for one in group if one != number] for group in groups for number in group}
    rows = [
        {"number": number, "team": team, "shares": others.get(number, [])}
        for number, team in enumerate(done.teams)
    ]
    show(signals, rows, COLUMNS, as_json)
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


def _quiet(_: str) -> None:
    """With --json, nothing else is told."""


COLUMNS: Columns = {
    "number": field("number"),
    "team": lambda row: " ".join(row["team"]),
    "shares": lambda row: " ".join(map(str, row["shares"])),
}
