"""Another queue that buried tasks go to: each is put there, in the transaction that removes it here."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument, PayloadUnreadable, QueueKindMismatch
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks import edges, failures
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import met_by
from fdbqueue.tasks.kinds import Draft, is_kind
from fdbqueue.tasks.payloads import ask_payload, key_in
from fdbqueue.tasks.records.keys import Record, id_bytes, partition_of
from fdbqueue.tasks.shape import Shape, shape_of


class Chosen(NamedTuple):
    """A buried task that is to go, and the number of its partition."""

    partition: int
    record: Record


def by_partition(chosen: Iterable[Chosen]) -> list[tuple[int, list[Record]]]:
    """The tasks of each partition; they are in the order of the partitions."""
    groups = groupby(chosen, key=attrgetter("partition"))
    return [(number, [one.record for one in few]) for number, few in groups]


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
        """The number of tasks, `count` at most, for which there is room. Reads: the size of each
        partition, by snapshot.
        """
        capacity = self._shape.settings.capacity
        if not capacity:
            return count
        return max(0, min(count, capacity - self._calls.parts.ask_size(tr)()))

    def move(self, changes: Sequence[Change], chosen: Sequence[Chosen]) -> int:
        """Move buried tasks, and their failures. Return their number: one with an unreadable payload stays.

        Reads: the payloads and the failures, by snapshot; as a put.
        Writes: as a put, and clears the tasks here.
        Raises: QueueFull, UnknownSession for a temporary queue of an ended session.
        """
        asked = [(one, *_ask_stored(changes[one.partition], one.record)) for one in chosen]
        read = [(one, _payload(payload), entries) for one, payload, entries in asked]
        whole = [(one, payload, entries()) for one, payload, entries in read if payload is not None]
        if whole:
            tr = changes[0].tr
            drafts = [self._draft(changes[0].shape, one.record, payload) for one, payload, _ in whole]
            tasks = self._calls.put_within(tr, drafts)
            for task, (_, _, entries) in zip(tasks, whole, strict=True):
                id_ = id_bytes(task.id)
                failures.keep(tr, self._shape.partition(partition_of(id_)).keys, id_, entries)
            for number, records in by_partition(one for one, _, _ in whole):
                change = changes[number]
                left: Sequence[Record] = records
                for feature in met_by(records, change.shape.features):
                    left = feature.left(change.site, left)
                edges.delete(change, left)
        return len(whole)

    def _draft(self, ours: Shape, record: Record, payload: bytes) -> Draft:
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
        extra = record.extra
        if extra is not None:
            extra = replace(extra, waits=b"")
            for feature in met_by([record], ours.features):
                extra = feature.fitted(extra, self._shape.settings)
        return replace(draft, trace=record.trace, extra=extra, failures=record.failures, arrives=True)


def _ask_stored(
    change: Change, record: Record
) -> tuple[Callable[[], bytes], Callable[[], list[failures.Entry]]]:
    tr, keys = change.tr, change.shape.keys
    return ask_payload(tr, keys, record), failures.ask_entries(tr, keys, record.id)


def _payload(reply: Callable[[], bytes]) -> bytes | None:
    try:
        return reply()
    except PayloadUnreadable:
        return None


def _require_alike(ours: Shape, other: Shape) -> None:
    if other.definition.id == ours.definition.id:
        raise InvalidArgument(name="into", wanted="another queue, or None", got=other.name)
    if other.settings.codec != ours.settings.codec:
        wanted = f"a queue with the codec {ours.settings.codec!r}, as payloads are moved unread"
        raise InvalidArgument(name="into", wanted=wanted, got=other.name)
