"""Queues and tasks as rows, which --json prints, and which columns are made from."""

from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fdbqueue import tasks as late
from fdbqueue.core.database import Database
from fdbqueue.core.errors import DefinitionUnreadable, QueueNotFound, RecordUnreadable, TaskNotFound
from fdbqueue.core.registry.definition import PLAIN, UNREADABLE, Definition
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.operate.cli.session import ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import Row
from fdbqueue.operate.cli.values import line_of
from fdbqueue.queues import elements, recipe
from fdbqueue.tasks.kinds import Settings, as_given, is_kind

if TYPE_CHECKING:
    from fdbqueue.tasks.queue import TaskQueue
    from fdbqueue.tasks.schedules.values import ScheduleStatus

STATES: Mapping[str, TaskState] = {
    state.name.lower(): state for state in TaskState if state != TaskState.DONE
}


def task_row(task: Task) -> dict[str, Any]:
    """Return a task as a row with the names of its attributes; the state is a word."""
    return {
        "id": task.id,
        "state": task.state.name.lower(),
        "data": _told(task.data),
        "pri": task.pri,
        "key": task.key,
        "attempts": task.attempts,
        "failures": task.failures,
        "orphaned": task.orphaned,
        "created": task.created,
        "expires": task.expires,
        "until": task.until,
        "taken": task.taken,
        "session": task.session,
        "trace": task.trace,
        "headers": dict(task.headers),
        "limits": dict(task.limits),
        "result_ttl": task.result_ttl,
        "unique": task.unique,
        "groups": list(task.groups),
        "waits_for": task.waits_for,
        "steps": task.steps,
        "cancel_asked": task.cancel_asked,
        "progress": task.fraction,
        "progress_told": task.fraction_told,
    }


def schedule_row(found: "ScheduleStatus") -> dict[str, Any]:
    """Return a schedule as a row with the names of its attributes."""
    return {**asdict(found), "data": _told(found.data)}


def _told(data: Any) -> Any:
    """Return the data. If unreadable, return the reason and the stored bytes in base64."""
    if not isinstance(data, Unreadable):
        return data
    return {"unreadable": str(data.error), "payload": b64encode(data.payload).decode()}


def queue_row(place: Place, database: Database, definition: Definition) -> Row:
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
    if definition.kind in ELEMENT_KINDS:
        under, guard = place.registry.contents(definition), place.registry.guard(definition)
        simple = elements.simple.SimpleElementQueue(under, root=place.root, guard=guard)
        row |= {"options": dict(definition.options), "items": simple.count(database)}
        return {**row, "unreadable": simple.unreadable(database)}
    if not is_kind(definition.kind):
        return {**row, "options": dict(definition.options)}
    tasks = late.queue.TaskQueue(database, place.registry, definition)
    paused, statistics = tasks.paused(database), tasks.statistics(database)
    return {**row, "options": options_of(definition), "paused": paused, **statistics}


def queue_rows(place: Place, database: Database) -> list[Row]:
    """Return the rows of all queues, without queues that are dropped meanwhile."""
    rows = []
    for definition in place.definitions(database):
        with suppress(QueueNotFound):
            rows.append(_row_or_error(place, database, definition))
    return rows


def _row_or_error(place: Place, database: Database, definition: Definition) -> Row:
    try:
        return queue_row(place, database, definition)
    except DefinitionUnreadable as error:
        return {"name": definition.name, "kind": definition.kind, "error": str(error)}


def holder_row(database: Database, queue: "TaskQueue", task: Task) -> dict[str, Any] | None:
    """Return the session that holds the task, and its processes; None if the task is not taken."""
    if task.state == TaskState.TAKEN:
        with suppress(TaskNotFound, RecordUnreadable):
            found = queue.holder(database, task)
            return None if found is None else asdict(found)
    return None


def steps_done(database: Database, queue: "TaskQueue", task: Task) -> list[str]:
    """Return the names of the steps of the task that are done."""
    if not task.steps:
        return []
    with suppress(TaskNotFound, RecordUnreadable):
        return queue.steps(database, task)
    return []


def failure_rows(database: Database, queue: "TaskQueue", task: Task) -> list[dict[str, Any]]:
    """Return the failures that are kept with the task, the oldest first."""
    if not task.attempts:
        return []
    with suppress(TaskNotFound, RecordUnreadable):
        return [asdict(failure) for failure in queue.failures(database, task)]
    return []


def options_of(definition: Definition) -> dict[str, Any]:
    """Return the options that differ from the default. Keys of weights are texts, or else JSON."""
    usual = Settings().to_options()
    given = as_given(definition.options)
    if given.get("weights"):
        given["weights"] = {_key_text(key): weight for key, weight in given["weights"].items()}
    return {name: value for name, value in given.items() if value != usual.get(name)}


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else line_of(key).decode().strip()
