"""From what is stored to a Task."""

from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as layer

from fdbqueue.codec import PayloadCodec
from fdbqueue.task import Task, TaskState
from fdbqueue.tasks.keys import NEVER_US, Record, TaskKeys, id_text
from fdbqueue.tasks.payloads import ask_payload


def read_tasks(tr: Any, keys: TaskKeys, codec: PayloadCodec, records: Sequence[Record]) -> list[Task]:
    """The tasks of `records`, their payloads read together."""
    return tasks_with(records, ask_data(tr, keys, codec, records))


def ask_data(
    tr: Any, keys: TaskKeys, codec: PayloadCodec, records: Sequence[Record]
) -> Callable[[], list[Any]]:
    asked = [ask_payload(tr, keys, record) for record in records]
    return lambda: [codec.decode(payload()) for payload in asked]


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
