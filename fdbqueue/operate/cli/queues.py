"""Commands on whole queues: `queues`, `create`, `stats`, `pause`, `resume` and `drop`.

And on the parts of a queue, their number, their servers: `partitions`, `repartition` and `spread`.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import DefinitionUnreadable, ImportUnfinished, LayoutNewer, QueueBusy, QueueExists
from fdbqueue.core.partitions import Partition, PartitionState, Repartition
from fdbqueue.core.registry import FAIR_ITEMS, PLAIN, Definition, exists_already, told_option
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.signals import Interrupted
from fdbqueue.core.visible import counted, key_of
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.exits import CommandError, Refused, require_stdout, say
from fdbqueue.operate.cli.frame import (
    NUMBER,
    WAIT,
    Here,
    SecondsRange,
    again,
    cli,
    command,
    first_option,
    in_this_place,
    queue_argument,
    queue_names,
    queue_options,
    yes_option,
)
from fdbqueue.operate.cli.redacting import seen
from fdbqueue.operate.cli.session import CREATE_DATABASE, ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import (
    PLAIN_EVERY_S,
    STATES,
    Cell,
    Row,
    cell_of,
    columns,
    per_second,
    processes_of,
    queue_row,
    queue_rows,
    time_in,
)
from fdbqueue.operate.cli.wording import line_of, option_named
from fdbqueue.operate.spreading import (
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
from fdbqueue.operate.spreading import dropped as dropped_in
from fdbqueue.queues.fair import FAIR_OPTIONS
from fdbqueue.queues.fair import stored_options as fair_options
from fdbqueue.queues.recipe.queue import Queue, stored_options
from fdbqueue.tasks.limits.limit import walk_all
from fdbqueue.tasks.noisy import noisy_keys
from fdbqueue.tasks.options import as_given, is_kind, kind_names
from fdbqueue.tasks.queue import TaskQueue

CREATED = "is created"
_OF_ITEMS = {PLAIN: ("codec", "partitions"), FAIR_ITEMS: FAIR_OPTIONS}
"""The options of the kinds that are not of tasks."""


@command(cli)
def queues(here: Here) -> None:
    """List the queues, with their kinds and the numbers of their tasks or items.

    Columns: name, kind, ready, taken, buried, delayed, done, paused. For a queue of items or elements, the
    column ready has their number.
    """
    with here.database() as database:
        rows = [*queue_rows(here, database, sweeps=False)]
    here.show(rows, QUEUE_COLUMNS)


@command(cli)
@click.argument("queue", metavar="QUEUE")
@click.option(
    "--kind", type=click.Choice([PLAIN, FAIR_ITEMS, *kind_names()]), help="[the first with these options]"
)
@queue_options
@click.option("--if-not-exists", is_flag=True, help="succeed if QUEUE exists with the given options")
@click.option("--any-options", is_flag=True, help="with --if-not-exists: whatever its kind and options")
def create(
    here: Here, queue: str, kind: str | None, if_not_exists: bool, any_options: bool, **options: Any
) -> None:
    """Create QUEUE, a queue of tasks, or with --kind queue a plain queue of items.

    fair-items: items in rounds over their keys, without leases; with --capacity and --weight.
    fifo: the oldest task first. fifottl: the lowest priority first, with ttl, ttr and delay. limfifottl: as
    fifottl, with a capacity. utube, utubettl: one task of a key at a time, in order. fair: keys in rounds.
    bag: no order, with ttl, ttr and delay. Without --kind it is the first that has the options given, so
    fifottl for --ttr. An option that the kind does not have is refused. With partitions, the order holds
    within each; tasks of one key are in one of them.
    """
    options["weights"] = dict(map(weight_of, options["weights"]))
    given = {name: value for name, value in options.items() if value not in (None, (), {})}
    of_tasks = [name for name in given if name not in _OF_ITEMS.get(kind or "", given)]
    if of_tasks:
        raise click.UsageError(f"{option_named(of_tasks[0])} is for task queues")
    told = CREATED
    trial = partial(_create, place=here, name=queue, kind=kind, given=given)
    with here.made(trial, create=True, cure=CREATE_DATABASE) as database:
        try:
            _create(database, here, queue, kind, given)
        except QueueExists as there:
            if not if_not_exists or (there.differing and not any_options):
                raise
            told = "exists already"
        row = queue_row(here, database, here.definition(database, queue))
    message = f"{queue!r} {told}, of kind {row['kind']}{_in_force(row)}"
    here.tell(message, {**row, "created": told == CREATED})


def weight_of(text: str) -> tuple[Any, int]:
    key, equals, weight = text.rpartition("=")
    try:
        found, number = key_of(key), int(weight if equals else "")
        hash(found)
    except (ValueError, TypeError, RecursionError):
        raise click.BadParameter(f"{text!r} is not of the form KEY=N", param_hint="--weight") from None
    return found, number


def _create(database: Database, place: Place, name: str, kind: str | None, given: dict[str, Any]) -> None:
    """Create a queue; the error of one that exists tells where it differs from what was given."""
    if kind not in _OF_ITEMS:
        TaskQueue.create(database, name, kind, root=place.root, **given)
        return
    if kind == PLAIN:
        options = stored_options(given.get("codec", "json"), given.get("partitions", 1))
    else:
        options = fair_options(**given)
    try:
        place.registry.create(database, name, kind, options)
    except QueueExists as there:
        raise exists_already(name, there.kind, as_given(there.options), {"kind": kind, **given}) from None


def _in_force(row: Row) -> str:
    """The options of a queue that are not the usual ones."""
    chosen = [(name, value) for name, value in row["options"].items() if (name, value) != ("codec", "json")]
    told = [f"{option_named(name)} {told_option(value)}" for name, value in chosen]
    return f", with {', '.join(told)}" if told else ""


@command(cli)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=queue_names)
def stats(here: Here, queue: str | None) -> None:
    """Print the statistics of QUEUE; without QUEUE, of all queues.

    Of a QUEUE with task keys, `noisy` names those with over a tenth of the taken tasks, if it is half as
    many again as an equal share. They are found among the first 1,000 taken tasks.
    """
    with here.database() as database:
        if queue is None:
            rows = [*queue_rows(here, database, sweeps=True)]
        else:
            found = here.definition(database, queue)
            rows = [{**queue_row(here, database, found), **_noisy(here, database, found)}]
        rows = [
            {**row, **late.lasting.chronicled(here, database, row["name"])}
            if row.get("options", {}).get("chronicle")
            else row
            for row in rows
        ]
    if here.as_json:
        here.show(rows, {})
    else:
        lines = [line for row in rows for line in _statistic_lines(row)]
        here.show(lines, columns(*(["queue"] if queue is None else []), "what", "value"))


def _noisy(place: Place, database: Database, definition: Definition) -> Row:
    """The noisy task keys of a queue that has task keys."""
    if not is_kind(definition.kind):
        return {}
    found = noisy_keys(database, TaskQueue(database, place.registry, definition))
    return {} if found is None else {"noisy": [{**asdict(one), "key": seen("key", one.key)} for one in found]}


def _statistic_lines(row: Row) -> list[Row]:
    """Return one line per number, named as in the JSON."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("options", "tasks", "calls", "ends", "times", "backlog") and value is not None:
            flat |= {f"{name}.{part}": number for part, number in value.items()}
        elif name == "noisy":
            flat |= {
                f"noisy.{cell_of(one['key'])}": f"{one['share']:.0%} of the taken tasks" for one in value
            }
        else:
            flat[name] = value
    return [{"queue": row["name"], "what": what, "value": cell_of(value)} for what, value in flat.items()]


@command(cli, queue_argument, first_option)
def waiting(here: Here, queue: str, count: int) -> None:
    """List the calls that wait for tasks or items of QUEUE, in the order of its line.

    Columns: the number of tasks or items that it waits for, its process, its session and the name of that,
    the time since its begin, and the time to its end, unless it renews itself. `get --wait` is in no line.
    """
    with here.database() as database:
        found = here.lined_in(database, here.definition(database, queue))
        calls, now = found.waiting(database, count), database.runtime.now()
    rows = [{**asdict(one), "for_s": max(0.0, now - one.since), "left_s": one.until - now} for one in calls]
    here.show(rows, WAITING_COLUMNS)


@command(cli, queue_argument)
def pause(here: Here, queue: str) -> None:
    """Let no task be taken from QUEUE until `resume`. Workers obey at once.

    Puts go on, and so do tasks that were taken.
    """
    with here.tasks(queue) as (database, found):
        found.pause(database)
    here.tell(f"{queue!r} is paused", {"queue": queue, "paused": True})


@command(cli, queue_argument)
def resume(here: Here, queue: str) -> None:
    """Let tasks be taken from QUEUE again, after `pause`."""
    with here.tasks(queue) as (database, found):
        found.resume(database)
    here.tell(f"{queue!r} is resumed", {"queue": queue, "paused": False})


@command(cli, queue_argument, yes_option)
def drop(here: Here, queue: str, yes: bool) -> None:
    """Remove QUEUE and its contents. Refused while a call waits for its tasks, or a session holds one.

    The tasks are removed first, in bounded transactions, then the queue. After an interruption, the queue is
    left with the tasks that were not removed yet.
    """
    with here.database() as database:
        is_import = False
        try:
            found = here.definition(database, queue)
            tasks = (
                None if found.kind in (PLAIN, FAIR_ITEMS, *ELEMENT_KINDS) else here.tasks_in(database, queue)
            )
            row = queue_row(here, database, found)
            items = row["tasks"]["total"] if "tasks" in row else row.get("items", 0)
            there = f"the {counted(items, 'item')}"
        except LayoutNewer:
            raise
        except (DefinitionUnreadable, ImportUnfinished) as reason:
            tasks, items, there = None, 0, f"all its contents (not counted: {reason})"
            is_import = isinstance(reason, ImportUnfinished)
        if not yes:
            raise Refused(f"drop would remove {queue!r} and {there} in it: confirm with --yes")
        if tasks is None:
            here.registry.drop(database, queue)
        else:
            if busy := tasks.busy(database):  # refuse before any task is removed
                raise QueueBusy(name=queue, reason=busy)
            remove = partial(tasks.truncate_some, database)
            here.counts(late.terminal.step_by_step(here.signals, "removing", items, remove))
            tasks.drop(database)
        if is_import:  # its definition does not tell the limits that its tasks name
            walk_all(database, here.root)
    here.tell(f"{queue!r} is gone", {"queue": queue, "dropped": True})


def _processes(row: Row) -> str:
    return processes_of({"holder": row})


WAITING_COLUMNS = columns(
    "count",
    process=_processes,
    session="session",
    name="name",
    since=time_in("for_s"),
    until=time_in("left_s"),
)


def _count(state: str) -> Cell:
    def cell(row: Row) -> str:
        if "tasks" in row:
            return str(row["tasks"][state])
        return str(row.get("items", "")) if state == "ready" else ""

    return cell


QUEUE_COLUMNS = columns(
    "name",
    "kind",
    **{state: _count(state) for state in (*STATES, "done")},
    paused=lambda row: "paused" if row.get("paused") else "",
)


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
    then = {one.number: one for one in before}
    both = zip(now, teams, strict=True)
    rows = [_row(one, then.get(one.number, one), elapsed_s, team) for one, team in both]
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
            here.note(database)
            run_lines(lines_to_remove(prefixes))
            here.tell(f"{queue!r}: no boundaries", {"queue": queue, "removed": True})
            return
        servers = StorageServers(database)
        if not servers.are_settled():
            see = in_this_place("`fdbcli --exec status`")
            raise Refused(f"the cluster is not healthy, or moves data: see {see}")
        here.note(database)
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
        here.note(database)
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
    teams = enumerate(done.teams)
    rows = [{"number": at, "team": team, "shares": others.get(at, [])} for at, team in teams]
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
    cluster_file = Place.of(url, None).cluster_file
    start = [program, *(["-C", cluster_file] if cluster_file else []), "--exec"]

    return lambda lines: "".join(_run([*start, ";".join(some)]) for some in _in_runs(lines))


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
