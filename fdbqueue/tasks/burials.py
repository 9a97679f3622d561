"""The verbs on one buried task, each in one transaction."""

from typing import Any

from fdbqueue.core.errors import NotBuried, TaskNotFound
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.payloads import ask_payload
from fdbqueue.tasks.records.keys import Record, id_text
from fdbqueue.tasks.sweep import as_of
from fdbqueue.tasks.tasks_of import task_of
from fdbqueue.tasks.verbs import Target


def kick_one(change: Change, target: Target) -> Task:
    record = _buried(change, target)
    # Before the edge: the task may join another partition.
    data = shown(change.shape.codec, ask_payload(change.tr, change.shape.keys, record))
    return task_of(edges.kick(change, [record])[0], data)


def edit(change: Change, target: Target, data: Any, payload: bytes, kick: bool) -> Task:
    """Store `payload` in place of that of the task, which may be unreadable; kick it as well, if told."""
    return task_of(edges.edit(change, _buried(change, target), payload, kick), data)


def _buried(change: Change, target: Target) -> Record:
    [record] = change.read([target.id])
    # Without its sweep: a buried task needs none, and a refusal writes nothing.
    current = None if record is None else as_of(record, change.now_us)
    if current is None:
        change.require_sound(target.id)
        raise TaskNotFound(id=id_text(target.id), name=change.shape.name)
    if current.state != TaskState.BURIED:
        raise NotBuried(id=id_text(target.id), state=TaskState(current.state).name.lower())
    return current
