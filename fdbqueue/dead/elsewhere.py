"""Another queue that buried tasks go to: each is put there, in the transaction that removes it here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fdbqueue.database import Database
from fdbqueue.errors import InvalidArgument, PayloadUnreadable, QueueKindMismatch
from fdbqueue.records.keys import Record, id_bytes
from fdbqueue.records.statistics import count_of
from fdbqueue.seam import Transaction
from fdbqueue.tasks import edges, failures
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft, is_kind
from fdbqueue.tasks.payloads import ask_payload
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.tasks_of import key_in


class Elsewhere:
    def __init__(self, calls: TaskCalls) -> None:
        self._calls = calls
        self._shape = calls.shape

    @classmethod
    def find(cls, change: Change, database: Database, name: str) -> "Elsewhere":
        """The queue of that name.

        Reads: its definition.
        Raises: QueueNotFound; QueueKindMismatch for a queue of no tasks; InvalidArgument for the queue of the
        tasks themselves, or one with another codec.
        """
        registry = change.shape.registry
        found = registry.find(change.tr, name)
        if not is_kind(found.kind):
            raise QueueKindMismatch(name=name, found=found.kind, wanted="a kind of task queue")
        shape = shape_of(registry, found)
        _require_alike(change.shape, shape)
        return cls(calls_of(database, shape))

    def room(self, tr: Transaction, count: int) -> int:
        """The number of tasks, `count` at most, for which there is room. Reads: the size, by snapshot."""
        capacity = self._shape.settings.capacity
        if not capacity:
            return count
        size = count_of(tr.snapshot.get(self._shape.keys.live).value)
        return max(0, min(count, capacity - size))

    def move(self, change: Change, records: Sequence[Record]) -> int:
        """Move buried tasks, and their failures. Return their number: one with an unreadable payload stays.

        Reads: the payloads and the failures, by snapshot; as a put.
        Writes: as a put, and clears the tasks here.
        Raises: QueueFull, UnknownSession for a temporary queue of an ended session.
        """
        tr, keys = change.tr, change.shape.keys
        asked = [
            (record, ask_payload(tr, keys, record), failures.ask_entries(tr, keys, record.id))
            for record in records
        ]
        read = [(record, _payload(payload), entries) for record, payload, entries in asked]
        whole = [(record, payload, entries()) for record, payload, entries in read if payload is not None]
        if whole:
            drafts = [self._draft(record, payload) for record, payload, _ in whole]
            tasks = self._calls.put_within(tr, drafts)
            for task, (_, _, entries) in zip(tasks, whole, strict=True):
                failures.keep(tr, self._shape.keys, id_bytes(task.id), entries)
            edges.delete(change, [record for record, _, _ in whole])
        return len(whole)

    def _draft(self, record: Record, payload: bytes) -> Draft:
        """A new task, with the options of the old one that this queue knows."""
        kind = self._shape.kind
        options: dict[str, Any] = {}
        if kind.supports("pri"):
            options["pri"] = record.pri
        if kind.supports("key") and record.key:
            options["key"] = key_in(record.key)
        if kind.supports("cost"):
            options["cost"] = record.cost
        draft = self._shape.draft(None, payload, options)
        return replace(draft, trace=record.trace, failures=record.failures)


def moved_bytes(record: Record) -> int:
    """The most bytes that a move of the task writes into the other queue."""
    return record.size_bytes + failures.bytes_max(record)


def _payload(reply: Callable[[], bytes]) -> bytes | None:
    try:
        return reply()
    except PayloadUnreadable:
        return None


def _require_alike(ours: Shape, other: Shape) -> None:
    """Raises: InvalidArgument."""
    if other.definition.id == ours.definition.id:
        raise InvalidArgument(name="into", wanted="another queue, or None", got=other.name)
    if other.settings.codec != ours.settings.codec:
        wanted = f"a queue with the codec {ours.settings.codec!r}, as payloads are moved unread"
        raise InvalidArgument(name="into", wanted=wanted, got=other.name)
