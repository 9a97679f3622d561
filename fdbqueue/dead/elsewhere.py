"""Another queue that buried tasks go to: each is put there, in the transaction that removes it here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fdb import tuple as layer

from fdbqueue.database import Database
from fdbqueue.errors import InvalidArgument, PayloadUnreadable, QueueKindMismatch
from fdbqueue.records.keys import Record
from fdbqueue.records.statistics import count_of
from fdbqueue.seam import Transaction
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft, is_kind
from fdbqueue.tasks.payloads import ask_payload
from fdbqueue.tasks.shape import Shape, shape_of


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
        """Move buried tasks. Return their number: a task with an unreadable payload stays.

        Reads: the payloads, by snapshot; as a put.
        Writes: as a put, and clears the tasks here.
        Raises: QueueFull, UnknownSession for a temporary queue of an ended session.
        """
        asked = [ask_payload(change.tr, change.shape.keys, record) for record in records]
        read = [(record, _payload(reply)) for record, reply in zip(records, asked, strict=True)]
        whole = [(record, payload) for record, payload in read if payload is not None]
        drafts = [self._draft(record, payload) for record, payload in whole]
        if drafts:
            self._calls.put_within(change.tr, drafts)
            edges.delete(change, [record for record, _ in whole])
        return len(drafts)

    def _draft(self, record: Record, payload: bytes) -> Draft:
        """A new task, with the options of the old one that this queue knows."""
        kind = self._shape.kind
        options: dict[str, Any] = {}
        if kind.supports("pri"):
            options["pri"] = record.pri
        if kind.supports("key") and record.key:
            options["key"] = layer.unpack(record.key)[0]
        if kind.supports("cost"):
            options["cost"] = record.cost
        return replace(self._shape.draft(None, payload, options), trace=record.trace)


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
