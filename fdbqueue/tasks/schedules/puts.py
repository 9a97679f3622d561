"""Puts of a schedule: its tasks go through the put of their queue, with headers that tell the due time."""

from collections.abc import Mapping, Sequence

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueKindMismatch, ScheduleUnfit
from fdbqueue.core.registry import Registry
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import SESSIONLESS
from fdbqueue.core.task import Task
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.schedules.records import Record
from fdbqueue.tasks.schedules.times import shown, zone_named
from fdbqueue.tasks.shape import Shape, shape_of

NAME_HEADER, TIME_HEADER = "schedule", "scheduled-for"
"""Headers of a task that a schedule has put: its name, and the due time."""


def put_for(
    tr: Transaction,
    database: Database,
    registry: Registry,
    name: str,
    record: Record,
    times_us: Sequence[int | None],
) -> list[Task]:
    """Put a task for each of these due times; for None, one for no due time.

    Reads: the definition of the queue; as a put.
    Raises: QueueNotFound, QueueKindMismatch, UnknownKind, ScheduleUnfit; as a put.
    """
    shape = queue_of(tr, registry, record.queue)
    require_codec(shape, name, record)
    drafts = [draft_of(shape, record, headers_of(name, record, time_us)) for time_us in times_us]
    return calls_of(database, shape).put_within(tr, drafts)


def queue_of(tr: Transaction, registry: Registry, queue: str) -> Shape:
    """The shape of a task queue. Raises: QueueNotFound, QueueKindMismatch, UnknownKind."""
    definition = registry.find(tr, queue)
    if definition.kind in SESSIONLESS:
        raise QueueKindMismatch(name=queue, found=definition.kind, wanted="a kind of task queue")
    return shape_of(registry, definition)


def require_codec(shape: Shape, name: str, record: Record) -> None:
    """Raises: ScheduleUnfit for a queue that was made again with another codec."""
    if shape.settings.codec != record.codec:
        reason = f"its data is encoded as {record.codec}, and the queue has the codec {shape.settings.codec}"
        raise ScheduleUnfit(name=name, queue=shape.name, reason=reason)


def headers_of(name: str, record: Record, time_us: int | None) -> dict[str, str]:
    """The headers of a task: those of the schedule, its name and the due time, in its time zone."""
    headers = {**(record.options.headers or {}), NAME_HEADER: name}
    if time_us is not None:
        headers[TIME_HEADER] = shown(time_us, zone_named(record.rule.timezone)).isoformat()
    return headers


def draft_of(shape: Shape, record: Record, headers: Mapping[str, str]) -> Draft:
    """A task of the schedule. Raises: UnsupportedOption, InvalidArgument."""
    return shape.draft(None, record.payload, {**record.options.given(), "headers": headers})
