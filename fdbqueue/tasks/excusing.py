"""Excusing: a lease that ended only because the database was away does not count as a failed attempt.

A sweep cannot tell such a lease from the lease of a dead worker, and counts it. The holder can tell, and
excuses the attempt when the database is back. The number of the attempt identifies the count: no other lost
lease of the task has it. So the right count is taken back, whatever has happened to the task since, and only
once.

The heartbeat of a worker finds the mark when it renews the lease, without a further read. An ack is still
possible: the work was done. Any other end of the lease ends the task (edges.py), so no later attempt begins.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from fdbqueue.core.errors import NotBuried, TaskNotFound
from fdbqueue.core.sessions.ending import runs_on
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.failures import EXCUSED, EXHAUSTED, LEASE_LOST, RETRIED, Entry, ask_entries, rewrite
from fdbqueue.tasks.payloads import ask_payload, task_of
from fdbqueue.tasks.records.keys import Record, id_text
from fdbqueue.tasks.sweep import as_of
from fdbqueue.tasks.verbs import Target, done, present


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


DATABASE_AWAY = "the database was away when its lease ended: this does not count"
NOT_RECEIVED = "its lease ended before a call had received it: this does not count"


def excuse(change: Change, id_: bytes, token: bytes | None, attempt: int) -> bool:
    """Take back the count of a lost lease, or end the lease uncounted. True if there was something to do."""
    asked = ask_entries(change.tr, change.shape.keys, id_)
    [record] = change.read([id_])
    if record is None:
        return False
    if record.state == TaskState.TAKEN and record.token == token:
        edges.release(change, [record])
        return True
    return _take_back(change, record, asked(), attempt, DATABASE_AWAY)


def forgive_missed(change: Change, id_: bytes, attempt: int) -> None:
    """As `excuse`, for the count of a lease that ended before its call collected the task."""
    asked = ask_entries(change.tr, change.shape.keys, id_)
    [record] = change.read([id_])
    if record is not None:
        _take_back(change, record, asked(), attempt, NOT_RECEIVED)


def _take_back(change: Change, record: Record, entries: Sequence[Entry], attempt: int, why: str) -> bool:
    lost = counted(record, entries, attempt)
    if lost is None:
        return False
    keys = change.shape.keys
    buried = buried_for(record, entries)
    if buried is not None:
        rewrite(change.tr, keys, record.id, buried, outcome=LEASE_LOST)
        if runs_on(change.tr, change.shape.root, buried.run):  # a row that has gone has nothing to take back
            change.end_for(buried.run, "buried", -1)
    rewrite(change.tr, keys, record.id, lost, outcome=EXCUSED, message=why)
    edges.excuse(change, record, excused(record, entries, lost))
    return True


def counted(record: Record, entries: Sequence[Entry], attempt: int) -> Entry | None:
    """The entry of the lost lease of that attempt, if it still counts."""
    return next(
        (
            entry
            for entry in entries
            if entry.number > record.forgiven
            and entry.failure.attempt == attempt
            and entry.failure.outcome in (LEASE_LOST, EXHAUSTED)
        ),
        None,
    )


def excused(record: Record, entries: Sequence[Entry], lost: Entry) -> Record:
    """The task as if `lost` had not been counted. If it was buried for that, it is ready again."""
    # A verb of a holder ends the series of lost leases.
    row_ended = any(entry.number > lost.number and entry.failure.outcome == RETRIED for entry in entries)
    right = replace(
        record,
        excused=record.excused + 1,
        orphaned=record.orphaned if row_ended else max(0, record.orphaned - 1),
    )
    return right if buried_for(record, entries) is None else edges.freed(right)


def buried_for(record: Record, entries: Sequence[Entry]) -> Entry | None:
    """The last lost lease of a task that was buried for too many failures."""
    if record.state != TaskState.BURIED:
        return None
    return next(
        (entry for entry in entries if entry.number > record.forgiven and entry.failure.outcome == EXHAUSTED),
        None,
    )


def cancel(change: Change, id_: bytes) -> Task:
    """End the task, or mark it if it is taken."""
    target = Target(id_)
    record = present(change, target)
    take_edge = edges.ask_cancel if record.state == TaskState.TAKEN else edges.cancel
    return done(change, target, record, lambda: take_edge(change, [record]))
