"""`fdbqueue top`: the counts and rates of queues, in intervals, with limits, schedules and groups."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable, QueueNotFound
from fdbqueue.fleet.status import Presence, workers
from fdbqueue.operate.backlog import Backlog, Pace, phrase
from fdbqueue.operate.cli.beside import allowed
from fdbqueue.operate.cli.frame import Here, SecondsRange, cli, command, queue_names
from fdbqueue.operate.cli.lasting import LASTED, times_row
from fdbqueue.operate.cli.redacting import seen, seen_text
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import (
    HELD_COLUMNS,
    STATES,
    Cell,
    Columns,
    Row,
    columns,
    held_rows,
    json_in,
    on_a_terminal,
    per_second,
    plain_line,
    shown_held,
    span,
    time_in,
)
from fdbqueue.operate.cli.terminal import table_of
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.operate.figures import Figures, GroupsFigures, ScheduleFigures
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.looking import KeyStatistics
from fdbqueue.tasks.options import is_kind, kind_named
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.times import Times

RATES = ("put", "take", "done")
WORKERS_SHOWN = 30
KEYS_SHOWN = 20
HELD_SHOWN = 20
BESIDE_SHOWN = 20
"""Limits, and schedules: those that are late first."""


@command(cli)
@click.argument("queue", nargs=-1, metavar="[QUEUE]...", shell_complete=queue_names)
@click.option("--interval", type=SecondsRange(min=0.1), default=1.0, metavar="S", help="every S seconds [1]")
@click.option("-n", "times", type=click.IntRange(min=1), metavar="N", help="print N times, then end")
def top(here: Here, queue: tuple[str, ...], interval: float, times: int | None) -> None:
    """Watch task queues: numbers of tasks by state, rates, and the wait of the next task.

    With QUEUE, watch those queues only, with the busiest keys of keyed ones. Columns: queue, ready, taken,
    buried, delayed, put/s, take/s, done/s, waits, workers, paused, due, acked, expired, deleted, unreadable,
    partitions, p99 wait, p99 run, backlog. With the option `chronicle`, `p99 wait` and `p99 run` are times of
    the last hour. `waits` is the time since the put of the next task; of several partitions, the longest.
    `due` counts delayed tasks that should be ready, up to 1,000. `acked`, `expired` and `deleted` count tasks
    by their end. `unreadable` counts the values that were set aside (`fdbqueue aside`). A terminal also shows
    each worker, the first taken tasks with their holders, and limits, schedules and groups that have not
    ended. A pipe gets one line per queue in each interval; keys, taken tasks (`held`), `limits` and
    `schedules` only with --json. Without QUEUE, that has one line more if there are groups: `groups`.
    """
    with here.database() as database:
        for name in queue:
            here.tasks_in(database, name)
        on_screen = on_a_terminal() and not here.as_json
        samples = Samples(here, database, queue, with_held=on_screen or here.as_json)
        if on_screen:
            with Live(console=Console(), screen=times is None, auto_refresh=False) as live:
                for rows in samples.every(interval, times):
                    live.update(_screen(rows, samples.workers(), samples.figures), refresh=True)
            return
        out = here.out()
        for rows in samples.every(interval, times):
            for row in rows:
                out.print(line_of(row) if here.as_json else plain_line(row, {**TOP_COLUMNS, **END_COLUMNS}))
            if here.as_json and samples.figures.groups.unfinished:
                told = _groups_row(samples.figures.groups)
                out.print(line_of({"time": samples.figures.now, "groups": told}))


class Samples:
    """Reads the counts of the queues, and computes rates since the read before."""

    def __init__(self, place: Place, database: Database, names: tuple[str, ...], with_held: bool) -> None:
        self._place = place
        self._database = database
        self._runtime = database.runtime
        self._names = names
        self._with_held = with_held
        self._last: dict[str, tuple[float, Mapping[str, int]]] = {}
        self._paces: dict[str, Pace] = {}
        self._overview = Overview(*names, keys=KEYS_SHOWN if names else 0, root=place.root)
        self.figures = Figures(0.0, (), 0)
        """Those of the last read."""

    def every(self, interval_s: float, times: int | None) -> Iterator[list[Row]]:
        taken = 0
        while times is None or taken < times:
            if taken:
                self._runtime.sleep(interval_s)
            yield self.take()
            taken += 1

    def take(self) -> list[Row]:
        found, names = self._place.definitions(self._database), self._names
        wanted = [one for one in found if is_kind(one.kind) and (not names or one.name in names)]
        rows, self.figures = [], self._overview.figures(self._database)
        for definition in wanted:
            try:
                rows.append(self._row(TaskQueue(self._database, self._place.registry, definition)))
            except (QueueNotFound, DefinitionUnreadable):
                self._last.pop(definition.name, None)
        return rows

    def workers(self) -> list[Row]:
        """Return the workers of the watched queues, on all machines."""
        watched = set(self._names)
        return [
            _worker_row(worker, self._runtime.now())
            for worker in workers(self._database, root=self._place.root)
            if not watched or watched.intersection(worker.queues)
        ]

    def _row(self, queue: TaskQueue) -> Row:
        """Raises: QueueNotFound for a queue that was dropped meanwhile."""
        # Given a transaction, the look sweeps nothing, and calls no callback.
        found, now, name = run(self._database, queue.statistics), self._runtime.now(), queue.name
        figures = self.figures.by_name.get(name)
        tasks = None if figures is None else figures.tasks
        if tasks is None:
            raise QueueNotFound(name=name)
        row: dict[str, Any] = {"time": now, "queue": name, "kind": queue.kind}
        row |= {count: found["tasks"][count] for count in (*STATES, "due", "unreadable")}
        row["ends"] = found["ends"]
        row |= self._rates(name, {**found["calls"], "done": found["tasks"]["done"]})
        row |= {"waits_s": tasks.next_age_s, "paused": tasks.paused, "partitions": tasks.partitions}
        row["repartition_from"] = tasks.partitions_before or None
        backlog = self._paces.setdefault(name, Pace()).backlog(tasks, self.figures.now)
        row["times"] = times_row(tasks.times)
        row["backlog"] = None if backlog is None else asdict(backlog)
        if self._names and kind_named(queue.kind).supports("key"):
            see = partial(queue.key_statistics, limit=KEYS_SHOWN)
            times = {key_bytes(one.key): one.times for one in tasks.busiest}
            row["keys"] = [_key_row(one, times) for one in run(self._database, see)]
        row["limits"] = [asdict(one) for one in self.figures.limits if name in one.queues]
        row["schedules"] = [_schedule_row(one) for one in self.figures.schedules if one.queue == name]
        if self._with_held:
            row["held"] = held_rows(self._database, queue, HELD_SHOWN) if row["taken"] else []
        row["workers"] = len(workers(self._database, name, root=self._place.root))
        return row

    def _rates(self, name: str, calls: Mapping[str, int]) -> dict[str, float | None]:
        """Return rates per second since the read before; None at the first."""
        now = self._runtime.monotonic()
        before, counted = self._last.get(name, (now, calls))
        self._last[name] = now, calls
        elapsed_s = now - before
        return {
            f"{call}_per_s": (calls[call] - counted[call]) / elapsed_s if elapsed_s else None
            for call in RATES
        }


def _screen(queues: list[Row], found: list[Row], figures: Figures) -> RenderableType:
    schedules = [{**_schedule_row(one), "now": figures.now} for one in figures.schedules]
    schedules.sort(key=lambda row: (-row["late_s"], row["due"] or float("inf")))
    groups = [_groups_row(figures.groups)] if figures.groups.unfinished else []
    shown: list[tuple[list[Row], Columns]] = [
        *((queue["keys"], KEY_COLUMNS) for queue in queues if "keys" in queue),
        ([asdict(one) for one in figures.limits[:BESIDE_SHOWN]], LIMIT_COLUMNS),
        ([*schedules[:BESIDE_SHOWN]], SCHEDULE_COLUMNS),
        (groups, GROUP_COLUMNS),
        (found[:WORKERS_SHOWN], WORKER_COLUMNS),
        (shown_held(queues, HELD_SHOWN), HELD_COLUMNS),
    ]
    tables = [table_of(queues, TOP_COLUMNS), table_of(queues, {**columns("queue"), **END_COLUMNS})]
    tables += [table_of(rows, its) for rows, its in shown if rows]
    return Group(*(part for table in tables for part in (table, Text())))


def _schedule_row(found: ScheduleFigures) -> Row:
    return {**asdict(found), "error": seen_text(found.error)}


def _key_row(found: KeyStatistics, times: Mapping[bytes, Times | None]) -> Row:
    row = {**asdict(found), "key": seen("key", found.key)}
    oldest = row.pop("oldest")
    row["times"] = times_row(times.get(key_bytes(found.key)))
    return {**row, "waits_s": None if oldest is None else oldest["age_s"]}


def _worker_row(worker: Presence, now: float) -> Row:
    more = f" and {worker.more_queues} more" if worker.more_queues else ""
    return {
        "worker": f"{worker.host}:{worker.process_id}",
        "handler": worker.handler,
        "queues": " ".join(worker.queues) + more,
        "threads": worker.threads,
        "running": len(worker.running),
        **asdict(worker.tally),
        "up": span(now - worker.since),
        "trouble": worker.trouble,
    }


def _groups_row(found: GroupsFigures) -> Row:
    held = [group.id for group in found.first_held]
    return {"unfinished": found.unfinished, "held": found.held, "first_held": held, "whole": found.is_whole}


def _partitions(row: Row) -> str:
    before = row["repartition_from"]
    return str(row["partitions"]) if before is None else f"{before} to {row['partitions']}"


def _end(name: str) -> Cell:
    return lambda row: str(row["ends"][name])


def _allows(row: Row) -> str:
    if row["free"] is None:
        return "missing" if row["error"] is None else "unreadable"
    return allowed(row, row["per_s"])


def _due(row: Row) -> str:
    if row["paused"]:
        return "paused"
    return "" if row["due"] is None or row["late_s"] else span(row["due"] - row["now"])


TOP_COLUMNS = columns(
    "queue",
    *STATES,
    **{f"{call}/s": per_second(f"{call}_per_s") for call in RATES},
    waits=time_in("waits_s"),
    workers="workers",
    paused=lambda row: "paused" if row.get("paused") else "",
)
# A terminal shows these as a second table, as the first one has no room for them.
END_COLUMNS = columns(
    "due",
    **{end: _end(end) for end in ("acked", "expired", "deleted", "cancelled")},
    unreadable="unreadable",
    partitions=_partitions,
    **LASTED,
    backlog=lambda row: "" if row["backlog"] is None else phrase(Backlog(**row["backlog"])),
)
KEY_COLUMNS = {"key": json_in("key", null=True), **columns(*STATES, waits=time_in("waits_s"), **LASTED)}
LIMIT_COLUMNS = columns(
    limit="name",
    allows=_allows,
    used=lambda row: "" if row["slots"] is None else f"{row['used']}",
    free="free",
    waiting="waiting",
    queues=lambda row: " ".join(row["queues"]),
)
SCHEDULE_COLUMNS = columns(
    **{"schedule": "name", "queue": "queue", "due in": _due},
    late=lambda row: span(row["late_s"]) if row["late_s"] else "",
    tasks="fired",
    error="error",
)
GROUP_COLUMNS = columns(
    groups=lambda row: f"{'' if row['whole'] else '>= '}{row['unfinished']}",
    **{"held by burials": "held", "first held": lambda row: " ".join(row["first_held"])},
)
WORKER_COLUMNS = columns(
    *("worker", "handler", "queues", "threads", "running"),
    *("done", "failed", "snoozed", "buried", "lost", "cancelled", "up", "trouble"),
)
