"""From what is stored to a Task."""

from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.arguments import too_much
from fdbqueue.codec import Codec
from fdbqueue.task import Task, TaskState
from fdbqueue.tasks.keys import NEVER_US, Record, TaskKeys, id_text, record_of
from fdbqueue.tasks.payloads import ask_payload


def read_tasks(tr: Any, keys: TaskKeys, codec: Codec, records: Sequence[Record]) -> list[Task]:
    """The tasks of `records`, their payloads read together."""
    return tasks_with(records, ask_data(tr, keys, codec, records))


def ask_data(tr: Any, keys: TaskKeys, codec: Codec, records: Sequence[Record]) -> Callable[[], list[Any]]:
    asked = [ask_payload(tr, keys, record) for record in records]
    return lambda: [codec.decode(payload()) for payload in asked]


def pages_of(records: Sequence[Record]) -> list[list[Record]]:
    """In order, so many together as have payloads that one transaction may read; one at least."""
    pages: list[list[Record]] = []
    room_bytes = 0
    for record in records:
        if not pages or record.size_bytes > room_bytes:
            pages.append([])
            room_bytes = limits.BATCH_BYTES_MAX
        pages[-1].append(record)
        room_bytes -= record.size_bytes
    return pages


def require_one_page(pages: Sequence[Sequence[Record]]) -> None:
    """Raises TooMuchForOneTransaction."""
    if len(pages) > 1:
        sizes_bytes = [record.size_bytes for page in pages for record in page]
        raise too_much(len(sizes_bytes), sum(sizes_bytes))


def still_there(tr: Any, keys: TaskKeys, codec: Codec, records: Sequence[Record]) -> list[tuple[Record, Any]]:
    """Those of `records`, perhaps of an earlier transaction, that are there, as they are now; their data."""
    asked = [(tr.snapshot.get(keys.task(record.id)), ask_payload(tr, keys, record)) for record in records]
    return [(record_of(now.value), codec.decode(payload())) for now, payload in asked if now.present()]


def tasks_with(records: Sequence[Record], data: Callable[[], list[Any]]) -> list[Task]:
    return [task_of(record, datum) for record, datum in zip(records, data(), strict=True)]


def task_of(record: Record, data: Any) -> Task:
    return Task(
        id=id_text(record.id),
        state=TaskState(record.state),
        data=data,
        pri=record.pri,
        key=layer.unpack(record.key)[0] if record.key else None,
        attempts=record.attempts,
        failures=record.failures_counted,
        orphaned=record.orphaned,
        created=record.created_us / 1_000_000,
        expires=seconds_or_never(record.expires_us),
        until=seconds_or_never(record.until_us),
        token=record.token or None,
    )


def seconds_or_never(time_us: int) -> float | None:
    return None if time_us == NEVER_US else time_us / 1_000_000
