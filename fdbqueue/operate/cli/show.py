"""The output of commands: a table on a terminal, tab-separated lines in a pipe, or JSON.

Queues and tasks are rows, which --json prints, and which columns are made from.
"""

import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue import tasks as late
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable, QueueNotFound, RecordUnreadable, TaskNotFound
from fdbqueue.core.page import Page
from fdbqueue.core.registry import FAIR_ITEMS, PLAIN, UNREADABLE, Definition
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.core.visible import span as span
from fdbqueue.core.visible import visible
from fdbqueue.operate import cli as late_cli
from fdbqueue.operate.cli.exits import LineWriter, require_stdout, say
from fdbqueue.operate.cli.redacting import in_environment, seen, seen_failures
from fdbqueue.operate.cli.session import ELEMENT_KINDS, Place
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.queues import recipe
from fdbqueue.tasks.options import Settings, as_given, is_kind

if TYPE_CHECKING:
    from fdbqueue.tasks.queue import TaskQueue


Row = Mapping[str, Any]
Cell = Callable[[Row], str]
Columns = Mapping[str, Cell]
T = TypeVar("T")
PLAIN_EVERY_S = 10.0
"""Time between two lines of a progress that is not drawn on a terminal."""


def stdout_of(signals: Signals) -> LineWriter:
    """Raises: CommandError if it is closed."""
    require_stdout()
    return LineWriter(sys.stdout.fileno(), signals.check)


def show(signals: Signals, rows: Iterable[Row], columns: Columns, as_json: bool) -> None:
    """Print `rows`: all of each as JSON, or its `columns`."""
    if on_a_terminal() and not as_json:
        late_cli.terminal.print_table(rows, columns)
        return
    out = stdout_of(signals)
    for row in rows:
        out.print(line_of(row) if as_json else plain_line(row, columns))


def on_a_terminal() -> bool:
    require_stdout()
    return os.isatty(sys.stdout.fileno())


def plain_line(row: Row, columns: Columns) -> bytes:
    cells = (visible(" ".join(cell(row).split())) for cell in columns.values())
    return ("\t".join(cells) + "\n").encode()


def paged(read: Callable[..., Page[T]], count: int, more: str) -> Iterator[T]:
    """Read at most `count` rows, page by page. If others may follow them, tell the sentence `more`."""
    page = read(limit=count)
    yield from page
    while page.next is not None:
        count -= len(page)
        if not count:
            say(f"{more}: -n N lists N")
            return
        page = read(limit=count, after=page.next)
        yield from page


def columns(*names: str, **others: Any) -> dict[str, Cell]:
    """Make columns: fields of these names, then others, each by the name of its field, or by a Cell."""
    cells = {name: field(cell) if isinstance(cell, str) else cell for name, cell in others.items()}
    return {**{name: field(name) for name in names}, **cells}


def field(name: str) -> Cell:
    """Return a column of one field; empty where the field is missing or None."""
    return lambda row: "" if row.get(name) is None else str(row[name])


def time_in(name: str) -> Cell:
    """Return a column of one length of time in seconds."""
    return lambda row: span(row[name])


def moment_in(name: str) -> Cell:
    return lambda row: moment(row[name])


def moment(seconds: float | None) -> str:
    """A time as a date and a time of day, in UTC; empty for None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def json_in(name: str, *, null: bool = False) -> Cell:
    """Return a column of one value as JSON; without `null`, empty for None."""
    return lambda row: "" if row[name] is None and not null else line_of(row[name]).decode().strip()


def cell_of(value: Any) -> str:
    """Return a text as it is, another value as JSON."""
    return value if isinstance(value, str) else line_of(value).decode().strip()


def per_second(name: str) -> Cell:
    """Return a column of one rate; empty for None."""
    return lambda row: "" if row[name] is None else f"{row[name]:,.1f}"


STATES: Mapping[str, TaskState] = {
    state.name.lower(): state for state in TaskState if state != TaskState.DONE
}
_HELD = ("id", "key", "attempts", "taken", "until", "progress", "cancel_asked", "session", "handed_to")


def task_row(task: Task, options: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """Return a task as a row with the names of its attributes; the state is a word.

    `options`: those of its queue, which may say its number of attempts. `whole`: for its consumer, without a
    redaction.
    """
    if not whole and (redaction := in_environment()) is not None:
        task = redaction.task(task)
    most, source = late.attempts.number_for(task, options)

    def same(names: str) -> dict[str, Any]:
        return {name: getattr(task, name) for name in names.split()}

    return {
        "id": task.id,
        "state": task.state.name.lower(),
        "data": told_data(task.data),
        **same("pri key attempts failures orphaned created expires until taken session trace"),
        "headers": dict(task.headers),
        "limits": dict(task.limits),
        **same("result_ttl unique"),
        "groups": list(task.groups),
        **same("waits_for steps cancel_asked handed_to"),
        "progress": task.fraction,
        "progress_told": task.fraction_told,
        "attempts_max": most,
        "attempts_from": source,
    }


def most_of(row: Row) -> str:
    """Return the number of attempts in force for the task of a row, and its source."""
    if row["attempts_max"] is None:
        return "its worker's"
    return f"{row['attempts_max']:g}, {row['attempts_from']}'s"


def told_data(data: Any) -> Any:
    """Return the data. If unreadable, return the reason and the stored bytes in base64."""
    if not isinstance(data, Unreadable):
        return data
    return {"unreadable": str(data.error), "payload": b64encode(data.payload).decode()}


def queue_row(place: Place, database: Database, definition: Definition, *, sweeps: bool = True) -> Row:
    """Return a queue with its options and counts, if this process knows its kind.

    Raises DefinitionUnreadable.
    """
    row: dict[str, Any] = {"name": definition.name, "kind": definition.kind}
    if definition.kind == UNREADABLE:
        place.registry.find(database, definition.name)
    if definition.kind == PLAIN:
        queue = recipe.queue.Queue.named(database, definition.name, root=place.root, create=False)
        row |= {"options": as_given(definition.options), "items": queue.size(database)}
        return {**row, "unreadable": queue.unreadable(database)}
    if definition.kind == FAIR_ITEMS:
        fair = place.items_in(database, definition)
        row |= {"options": _options_of(definition), "items": fair.size(database)}
        return {**row, "unreadable": fair.unreadable(database)}
    if definition.kind in ELEMENT_KINDS:
        elements = place.elements_in(definition)
        row |= {"options": dict(definition.options), "items": elements.count(database)}
        return {**row, "unreadable": elements.unreadable(database)}
    if not is_kind(definition.kind):
        return {**row, "options": dict(definition.options)}
    tasks = late.queue.TaskQueue(database, place.registry, definition)
    # Given a transaction, the look sweeps nothing, and calls no callback.
    statistics = tasks.statistics(database) if sweeps else run(database, tasks.statistics)
    return {**row, "options": _options_of(definition), "paused": tasks.paused(database), **statistics}


def queue_rows(place: Place, database: Database, *, sweeps: bool) -> Iterator[Row]:
    """Return the rows of all queues, without queues that are dropped meanwhile."""
    for definition in place.definitions(database):
        with suppress(QueueNotFound):
            try:
                yield queue_row(place, database, definition, sweeps=sweeps)
            except DefinitionUnreadable as error:
                yield {"name": definition.name, "kind": definition.kind, "error": str(error)}


def _options_of(definition: Definition) -> dict[str, Any]:
    """Return the options that differ from the default. Keys of weights are texts, or else JSON."""
    usual = Settings().to_options()
    given = as_given(definition.options)
    if given.get("weights"):
        given["weights"] = {cell_of(seen("key", key)): weight for key, weight in given["weights"].items()}
    return {name: value for name, value in given.items() if value != usual.get(name)}


def holder_row(database: Database, queue: "TaskQueue", task: Task) -> dict[str, Any] | None:
    """Return the session that holds the task, and its processes; None if the task is not taken."""
    if task.state == TaskState.TAKEN:
        with suppress(TaskNotFound, RecordUnreadable):
            found = queue.holder(database, task)
            return None if found is None else asdict(found)
    return None


def history_row(database: Database, queue: "TaskQueue", task: Task) -> dict[str, Any]:
    """Return the failures that are kept with the task, the oldest first, and the names of its done steps."""
    row: dict[str, Any] = {"history": [], "steps_done": []}
    with suppress(TaskNotFound, RecordUnreadable):
        found = queue.failures(database, task) if task.attempts else []
        row["history"] = [asdict(one) for one in seen_failures(task, found)]
    with suppress(TaskNotFound, RecordUnreadable):  # apart: unreadable failures hide no steps
        row["steps_done"] = queue.steps(database, task) if task.steps else []
    return row


def held_rows(database: Database, queue: "TaskQueue", count: int) -> list[Row]:
    """Return the first `count` taken tasks, each with its holder. Their sessions are read once each."""
    holders: dict[str | None, Row | None] = {}
    rows: list[Row] = []
    # Given a transaction, the look sweeps nothing.
    for task in run(database, partial(queue.tasks, state=TaskState.TAKEN, limit=count)):
        if task.session not in holders:
            holders[task.session] = holder_row(database, queue, task)
        row = task_row(task, queue.options)
        rows.append({**{name: row[name] for name in _HELD}, "holder": holders[task.session]})
    return rows


def shown_held(queues: list[Row], count: int) -> list[Row]:
    """Return the first `count` of the held tasks of these queues, for columns."""
    rows: list[Row] = [
        {**held, "queue": queue["queue"], "for_s": held["taken"] and max(0.0, queue["time"] - held["taken"])}
        for queue in queues
        for held in queue["held"]
    ]
    return rows[:count]


def processes_of(row: Row) -> str:
    """Return the processes of the holder of a row as text, or for whom the task was handed off."""
    if row.get("handed_to") is not None:
        return f"handed off: {row['handed_to']}".removesuffix(": ")
    processes = [] if row["holder"] is None else row["holder"]["processes"]
    return ", ".join(f"{process['host']}:{process['process_id']}" for process in processes)


def progress_of(row: Row) -> str:
    """Return the progress of a taken task as text, and whether it was cancelled."""
    told = "" if row["progress"] is None else f"{row['progress']:.0%}"
    return told if row["cancel_asked"] is None else f"{told} cancelled".strip()


HELD_COLUMNS = {
    **columns("queue", **{"taken task": "id", "for": time_in("for_s")}),
    **columns(progress=progress_of, holder=processes_of, session="session"),
}
