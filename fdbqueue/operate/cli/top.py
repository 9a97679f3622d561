"""`fdbqueue top`: the counts and rates of queues, in intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fdbqueue.core.database import Database
from fdbqueue.core.errors import DefinitionUnreadable, QueueNotFound
from fdbqueue.core.signals import Signals
from fdbqueue.fleet.presence import Presence, workers
from fdbqueue.operate.cli.beside import (
    GROUP_COLUMNS,
    LIMIT_COLUMNS,
    SCHEDULE_COLUMNS,
    groups_row,
    rows_of_queue,
    schedule_rows,
)
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_names, stdout_of
from fdbqueue.operate.cli.held import HELD_COLUMNS, held_rows, shown_held
from fdbqueue.operate.cli.parameters import SecondsRange
from fdbqueue.operate.cli.rows import STATES
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, on_a_terminal, plain_line, span
from fdbqueue.operate.cli.tables import table_of
from fdbqueue.operate.cli.values import line_of
from fdbqueue.operate.overview.figures import Figures, TaskFigures
from fdbqueue.operate.overview.overview import Overview
from fdbqueue.tasks.key_statistics import KeyStatistics
from fdbqueue.tasks.kinds import is_kind, kind_named
from fdbqueue.tasks.queue import TaskQueue

RATES = ("put", "take", "done")
WORKERS_SHOWN = 30
KEYS_SHOWN = 20
HELD_SHOWN = 20
BESIDE_SHOWN = 20
"""Limits, and schedules: those that are late first."""


@cli.command()
@click.argument("queue", nargs=-1, metavar="[QUEUE]...", shell_complete=queue_names)
@click.option("--interval", type=SecondsRange(min=0.1), default=1.0, metavar="S", help="every S seconds [1]")
@click.option("-n", "times", type=click.IntRange(min=1), metavar="N", help="print N times, then end")
@json_option
@in_a_place
@click.pass_obj
def top(
    signals: Signals, place: Place, queue: tuple[str, ...], interval: float, times: int | None, as_json: bool
) -> None:
    """Watch task queues: numbers of tasks by state, rates, and the wait of the next task.

    With QUEUE, watch those queues only, with the busiest keys of keyed ones. Columns: queue, ready, taken,
    buried, delayed, put/s, take/s, done/s, waits, workers, paused, due, acked, expired, deleted, unreadable,
    partitions. `waits` is the time since the put of the next task; of several partitions, the longest. `due`
    counts delayed tasks that should be ready, up to 1,000. `acked`, `expired` and `deleted` count tasks by
    their end. `unreadable` counts the values that were set aside (`fdbqueue aside`). A terminal also shows
    each worker, the first taken tasks with their holders, and limits, schedules and groups that have not
    ended. A pipe gets one line per queue in each interval; keys, taken tasks (`held`), `limits` and
    `schedules` only with --json. Without QUEUE, that has one line more if there are groups: `groups`.
    """
    with place.database() as database:
        for name in queue:
            place.tasks_in(database, name)
        on_screen = on_a_terminal() and not as_json
        samples = Samples(place, database, queue, with_held=on_screen or as_json)
        if on_screen:
            _live(samples, interval, times)
            return
        out = stdout_of(signals)
        for rows in samples.every(interval, times):
            for row in rows:
                out.print(line_of(row) if as_json else plain_line(row, {**TOP_COLUMNS, **END_COLUMNS}))
            if as_json and samples.figures.groups.unfinished:
                told = groups_row(samples.figures.groups)
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
        self._overview = Overview(*names, keys=0, root=place.root)
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
        found = self._place.definitions(self._database)
        wanted = [
            queue for queue in found if is_kind(queue.kind) and queue.name in (self._names or [queue.name])
        ]
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
        found, now = queue.statistics(self._database), self._runtime.now()
        tasks = self._figures(queue.name)
        row: dict[str, Any] = {"time": now, "queue": queue.name, "kind": queue.kind}
        row |= {state: found["tasks"][state] for state in STATES}
        row |= {"due": found["tasks"]["due"], "unreadable": found["tasks"]["unreadable"]}
        row["ends"] = found["ends"]
        row |= self._rates(queue.name, {**found["calls"], "done": found["tasks"]["done"]})
        row |= {"waits_s": tasks.next_age_s, "paused": tasks.paused, "partitions": tasks.partitions}
        row["repartition_from"] = tasks.partitions_before or None
        if self._names and kind_named(queue.kind).supports("key"):
            row["keys"] = [_key_row(found) for found in queue.key_statistics(self._database, KEYS_SHOWN)]
        row |= rows_of_queue(self.figures, queue.name)
        if self._with_held:
            row["held"] = held_rows(self._database, queue, HELD_SHOWN) if row["taken"] else []
        row["workers"] = len(workers(self._database, queue.name, root=self._place.root))
        return row

    def _figures(self, name: str) -> TaskFigures:
        """Return the figures of a queue, unless it was dropped meanwhile."""
        found = self.figures.by_name.get(name)
        if found is None or found.tasks is None:
            raise QueueNotFound(name=name)
        return found.tasks

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


def _live(samples: Samples, interval_s: float, times: int | None) -> None:
    with Live(console=Console(), screen=times is None, auto_refresh=False) as live:
        for rows in samples.every(interval_s, times):
            live.update(_screen(rows, samples.workers(), samples.figures), refresh=True)


def _screen(queues: list[Row], found: list[Row], figures: Figures) -> RenderableType:
    tables = [table_of(queues, TOP_COLUMNS), table_of(queues, {"queue": field("queue"), **END_COLUMNS})]
    tables += [table_of(queue["keys"], KEY_COLUMNS) for queue in queues if queue.get("keys")]
    limits = list(map(asdict, figures.limits[:BESIDE_SHOWN]))
    tables += [table_of(limits, LIMIT_COLUMNS)] if limits else []
    schedules = schedule_rows(figures)[:BESIDE_SHOWN]
    tables += [table_of(schedules, SCHEDULE_COLUMNS)] if schedules else []
    groups = [groups_row(figures.groups)] if figures.groups.unfinished else []
    tables += [table_of(groups, GROUP_COLUMNS)] if groups else []
    tables += [table_of(found[:WORKERS_SHOWN], WORKER_COLUMNS)] if found else []
    held = shown_held(queues, HELD_SHOWN)
    tables += [table_of(held, HELD_COLUMNS)] if held else []
    return Group(*(part for table in tables for part in (table, Text())))


def _key_row(found: KeyStatistics) -> Row:
    row = asdict(found)
    oldest = row.pop("oldest")
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
    }


def _rate(name: str) -> Any:
    return lambda row: "" if row[name] is None else f"{row[name]:,.1f}"


def _partitions(count: int, before: int | None) -> str:
    return str(count) if before is None else f"{before} to {count}"


def _end(name: str) -> Any:
    return lambda row: str(row["ends"][name])


TOP_COLUMNS: Columns = {
    "queue": field("queue"),
    **{state: field(state) for state in STATES},
    **{f"{call}/s": _rate(f"{call}_per_s") for call in RATES},
    "waits": lambda row: span(row["waits_s"]),
    "workers": field("workers"),
    "paused": lambda row: "paused" if row.get("paused") else "",
}
# A terminal shows these as a second table, as the first one has no room for them.
END_COLUMNS: Columns = {
    "due": field("due"),
    **{end: _end(end) for end in ("acked", "expired", "deleted", "cancelled")},
    "unreadable": field("unreadable"),
    "partitions": lambda row: _partitions(row["partitions"], row["repartition_from"]),
}
KEY_COLUMNS: Columns = {
    "key": lambda row: line_of(row["key"]).decode().strip(),
    **{state: field(state) for state in STATES},
    "waits": lambda row: span(row["waits_s"]),
}
WORKER_COLUMNS: Columns = {
    name: field(name)
    for name in (
        *("worker", "handler", "queues", "threads", "running"),
        *("done", "failed", "snoozed", "buried", "lost", "cancelled", "up"),
    )
}
