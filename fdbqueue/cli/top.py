"""`fdbqueue top`: the counts and rates of queues, in intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fdbqueue.cli.group import cli, in_a_place, json_option, queue_names, stdout_of
from fdbqueue.cli.parameters import SecondsRange
from fdbqueue.cli.records import STATES
from fdbqueue.cli.session import Place
from fdbqueue.cli.show import Columns, Record, field, on_a_terminal, plain_line, span, table_of
from fdbqueue.cli.values import line_of
from fdbqueue.database import Database
from fdbqueue.errors import DefinitionUnreadable, QueueNotFound
from fdbqueue.fleet.presence import Presence, workers
from fdbqueue.signals import Signals
from fdbqueue.task import TaskState
from fdbqueue.tasks.key_statistics import KeyStatistics
from fdbqueue.tasks.kinds import is_kind, kind_named
from fdbqueue.tasks.queue import TaskQueue

RATES = ("put", "take", "done")
WORKERS_SHOWN = 30
KEYS_SHOWN = 20


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
    buried, delayed, put/s, take/s, done/s, waits, workers, paused, due, acked, expired, deleted, unreadable.
    `due` counts delayed tasks that should be ready, up to 1,000. `acked`, `expired` and `deleted` count tasks
    by their end. `unreadable` counts the values that were set aside (`fdbqueue aside`). A terminal also shows
    each worker. A pipe gets one line per queue in each interval; keys only with --json.
    """
    with place.database() as database:
        for name in queue:
            place.tasks_in(database, name)
        samples = Samples(place, database, queue)
        if on_a_terminal() and not as_json:
            _live(samples, interval, times)
            return
        out = stdout_of(signals)
        for records in samples.every(interval, times):
            for record in records:
                out.print(line_of(record) if as_json else plain_line(record, {**TOP_COLUMNS, **END_COLUMNS}))


class Samples:
    """Reads the counts of the queues, and computes rates since the read before."""

    def __init__(self, place: Place, database: Database, names: tuple[str, ...]) -> None:
        self._place = place
        self._database = database
        self._runtime = database.runtime
        self._names = names
        self._last: dict[str, tuple[float, Mapping[str, int]]] = {}

    def every(self, interval_s: float, times: int | None) -> Iterator[list[Record]]:
        taken = 0
        while times is None or taken < times:
            if taken:
                self._runtime.sleep(interval_s)
            yield self.take()
            taken += 1

    def take(self) -> list[Record]:
        found = self._place.definitions(self._database)
        wanted = [
            queue for queue in found if is_kind(queue.kind) and queue.name in (self._names or [queue.name])
        ]
        records = []
        for definition in wanted:
            try:
                records.append(self._record(TaskQueue(self._database, self._place.registry, definition)))
            except (QueueNotFound, DefinitionUnreadable):
                self._last.pop(definition.name, None)
        return records

    def workers(self) -> list[Record]:
        """Return the workers of the watched queues, on all machines."""
        watched = set(self._names)
        return [
            _worker_record(worker, self._runtime.now())
            for worker in workers(self._database, root=self._place.root)
            if not watched or watched.intersection(worker.queues)
        ]

    def _record(self, queue: TaskQueue) -> Record:
        found, now = queue.statistics(self._database), self._runtime.now()
        first = next(iter(queue.tasks(self._database, TaskState.READY, 1)), None)
        record: dict[str, Any] = {"time": now, "queue": queue.name, "kind": queue.kind}
        record |= {state: found["tasks"][state] for state in STATES}
        record |= {"due": found["tasks"]["due"], "unreadable": found["tasks"]["unreadable"]}
        record["ends"] = found["ends"]
        record |= self._rates(queue.name, {**found["calls"], "done": found["tasks"]["done"]})
        record["waits_s"] = None if first is None else max(0.0, now - first.created)
        record["paused"] = queue.paused(self._database)
        if self._names and kind_named(queue.kind).supports("key"):
            record["keys"] = [
                _key_record(found) for found in queue.key_statistics(self._database, KEYS_SHOWN)
            ]
        record["workers"] = len(workers(self._database, queue.name, root=self._place.root))
        return record

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
        for records in samples.every(interval_s, times):
            live.update(_screen(records, samples.workers()), refresh=True)


def _screen(queues: list[Record], found: list[Record]) -> RenderableType:
    tables = [table_of(queues, TOP_COLUMNS), table_of(queues, {"queue": field("queue"), **END_COLUMNS})]
    tables += [table_of(queue["keys"], KEY_COLUMNS) for queue in queues if queue.get("keys")]
    tables += [table_of(found[:WORKERS_SHOWN], WORKER_COLUMNS)] if found else []
    return Group(*(part for table in tables for part in (table, Text())))


def _key_record(found: KeyStatistics) -> Record:
    record = asdict(found)
    oldest = record.pop("oldest")
    return {**record, "waits_s": None if oldest is None else oldest["age_s"]}


def _worker_record(worker: Presence, now: float) -> Record:
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
    return lambda record: "" if record[name] is None else f"{record[name]:,.1f}"


def _end(name: str) -> Any:
    return lambda record: str(record["ends"][name])


TOP_COLUMNS: Columns = {
    "queue": field("queue"),
    **{state: field(state) for state in STATES},
    **{f"{call}/s": _rate(f"{call}_per_s") for call in RATES},
    "waits": lambda record: span(record["waits_s"]),
    "workers": field("workers"),
    "paused": lambda record: "paused" if record.get("paused") else "",
}
# A terminal shows these as a second table, as the first one has no room for them.
END_COLUMNS: Columns = {
    "due": field("due"),
    **{end: _end(end) for end in ("acked", "expired", "deleted")},
    "unreadable": field("unreadable"),
}
KEY_COLUMNS: Columns = {
    "key": lambda record: line_of(record["key"]).decode().strip(),
    **{state: field(state) for state in STATES},
    "waits": lambda record: span(record["waits_s"]),
}
WORKER_COLUMNS: Columns = {
    name: field(name)
    for name in (
        *("worker", "handler", "queues", "threads", "running"),
        *("done", "failed", "snoozed", "buried", "lost", "up"),
    )
}
