"""The taken tasks of a queue with their holders, for `fdbqueue top`."""

from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.core.task import TaskState
from fdbqueue.operate.cli.rows import holder_row, task_row
from fdbqueue.operate.cli.show import Columns, Row, field, span
from fdbqueue.tasks.queue import TaskQueue

_FIELDS = ("id", "key", "attempts", "taken", "until", "progress", "cancel_asked", "session")


def held_rows(database: Database, queue: TaskQueue, count: int) -> list[Row]:
    """Return the first `count` taken tasks, each with its holder. Their sessions are read once each."""
    holders: dict[str | None, Row | None] = {}
    rows: list[Row] = []
    for task in queue.tasks(database, TaskState.TAKEN, count):
        if task.session not in holders:
            holders[task.session] = holder_row(database, queue, task)
        row = task_row(task)
        rows.append({**{name: row[name] for name in _FIELDS}, "holder": holders[task.session]})
    return rows


def shown_held(queues: list[Row], count: int) -> list[Row]:
    """Return the first `count` of the held tasks of these queues, for columns."""
    return [*_told(queues)][:count]


def _told(queues: list[Row]) -> Iterator[Row]:
    for queue in queues:
        for held in queue["held"]:
            for_s = None if held["taken"] is None else max(0.0, queue["time"] - held["taken"])
            yield {**held, "queue": queue["queue"], "for_s": for_s}


def processes_of(row: Row) -> str:
    """Return the processes of the holder of a row as text."""
    processes = [] if row["holder"] is None else row["holder"]["processes"]
    return ", ".join(f"{process['host']}:{process['process_id']}" for process in processes)


def progress_of(row: Row) -> str:
    """Return the progress of a taken task as text, and whether it was cancelled."""
    told = "" if row["progress"] is None else f"{row['progress']:.0%}"
    return told if row["cancel_asked"] is None else f"{told} cancelled".strip()


HELD_COLUMNS: Columns = {
    "queue": field("queue"),
    "taken task": field("id"),
    "for": lambda row: span(row["for_s"]),
    "progress": progress_of,
    "holder": processes_of,
    "session": field("session"),
}
