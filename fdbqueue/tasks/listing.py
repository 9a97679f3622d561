"""Looking at a task queue without changing it."""

from collections.abc import Sequence

from fdbqueue import limits
from fdbqueue.line.staging import Line
from fdbqueue.seam import Range
from fdbqueue.sweep import as_of, ask_due
from fdbqueue.task import Task, TaskState
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.keys import Record, id_in, record_of
from fdbqueue.tasks.tasks_of import pages_of, read_tasks, still_there, task_of


def first_page(change: Change, state: TaskState, limit: int) -> tuple[list[list[Record]], list[Task]]:
    """The first in `state`, as of now, swept or not: up to `limit` in pages, and the tasks of the first page.

    Reads the index of the state, up to limits.DUE_BATCH timers that have run out, the tasks, and the payloads
    of the first page, by snapshot.
    """
    shape = change.shape
    check = shape.guard(change.tr)
    due = ask_due(change.tr, shape.keys, change.now_us)
    indexed = _ask_index(change, state, limit + limits.DUE_BATCH)
    check()
    ids = dict.fromkeys([*_ids(indexed), *(_ids(due) if state == TaskState.READY else [])])
    asked = [change.tr.snapshot.get(shape.keys.task(id_)) for id_ in ids]
    found = [as_of(record_of(task.value), change.now_us) for task in asked if task.present()]
    there = [record for record in found if record is not None and record.state == state]
    there.sort(key=lambda record: _order(change, record))
    pages = pages_of(there[:limit])
    return pages, read_tasks(change.tr, shape.keys, shape.codec, pages[0]) if pages else []


def next_page(change: Change, state: TaskState, records: Sequence[Record]) -> list[Task]:
    """The tasks of another page, but for those that have left the state. Reads them by snapshot."""
    shape = change.shape
    check = shape.guard(change.tr)
    found = still_there(change.tr, shape.keys, shape.codec, records)
    check()
    judged = [(as_of(record, change.now_us), data) for record, data in found]
    return [task_of(record, data) for record, data in judged if record is not None and record.state == state]


def busy(change: Change, line: Line) -> str:
    """Why the queue cannot be dropped; nothing if it can.

    Reads the requests and the taken tasks, serialisably; conflicts with whoever joins the line or takes.
    """
    tr, keys = change.tr, change.shape.keys
    check = change.shape.guard(tr)
    requests = tr.get_range(line.keys.requests.start, line.keys.requests.stop, limit=limits.SERVE_MAX)
    taken = tr.get_range(keys.taken.start, keys.taken.stop, limit=limits.SERVE_MAX)
    check()
    if line.anyone_alive(tr, requests, change.now_us):
        return "somebody is waiting for tasks"
    held = [
        record
        for record in change.read(_ids(taken))
        if record is not None and record.until_us > change.now_us
    ]
    return "tasks are taken" if held else ""


def _ask_index(change: Change, state: TaskState, limit: int) -> Range | None:
    keys = change.shape.keys
    indexes = {
        TaskState.READY: change.shape.discipline.index,
        TaskState.TAKEN: keys.taken,
        TaskState.DELAYED: keys.delayed,
        TaskState.BURIED: keys.buried,
    }
    under = indexes.get(state)
    return None if under is None else change.tr.snapshot.get_range(under.start, under.stop, limit=limit)


def _ids(entries: Range | None) -> list[bytes]:
    return [] if entries is None else [id_in(entry.key) for entry in entries]


def _order(change: Change, record: Record) -> bytes:
    discipline = change.shape.discipline
    if record.state == TaskState.READY:
        return discipline.filed(record)
    return discipline.place(record) if record.state == TaskState.BURIED else record.id
