"""Task objects from stored records."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.registry.definition import UNPACKING
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.trace_context import unpacked
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks.payloads import ask_payload
from fdbqueue.tasks.records.keys import NEVER_US, NUMBER, Extra, Record, TaskKeys, id_text

_NO_EXTRA = Extra()


def shown_tasks(tr: Any, keys: TaskKeys, codec: PayloadCodec, records: Sequence[Record]) -> list[Task]:
    """The tasks for a listing, payloads read together. An Unreadable stands for data that cannot be read."""
    asked = ask_payloads(tr, keys, records)
    return [task_of(record, shown(codec, payload)) for record, payload in zip(records, asked, strict=True)]


def ask_payloads(tr: Any, keys: TaskKeys, records: Sequence[Record]) -> list[Callable[[], bytes]]:
    return list(map(partial(ask_payload, tr, keys), records))


def task_of(record: Record, data: Any) -> Task:
    extra = record.extra or _NO_EXTRA
    return Task(
        id=id_text(record.id),
        state=TaskState(record.state),
        data=data,
        pri=record.pri,
        key=key_in(record.key) if record.key else None,
        attempts=record.attempts,
        failures=record.failures - record.forgiven - record.excused,
        orphaned=record.orphaned,
        created=record.created_us / 1_000_000,
        expires=None if record.expires_us == NEVER_US else record.expires_us / 1_000_000,
        until=None if record.until_us == NEVER_US else record.until_us / 1_000_000,
        token=record.token or None,
        taken=record.taken_us / 1_000_000 if record.taken_us else None,
        session=record.session.hex() or None,
        trace=unpacked(record.trace) if record.trace else None,
        cancel_asked=record.cancelled_us / 1_000_000 if record.cancelled_us else None,
        fraction=record.fraction,
        fraction_told=record.told_us / 1_000_000 if record.told_us else None,
        headers=record.extra.headers if record.extra else {},
        limits=_limits_of(extra) if extra.limits else {},
        steps=extra.steps,
        result_ttl=extra.result_ttl_us / 1_000_000 if extra.result_ttl_us else None,
        unique=key_in(extra.unique.key) if extra.unique else None,
        groups=tuple(member.group.hex() for member in extra.groups) if extra.groups else (),
        waits_for=extra.waits.hex() or None,
    )


def _limits_of(extra: Extra) -> dict[str, Any]:
    if not extra.limit_keys:
        return dict.fromkeys(extra.limits)
    return {name: key_in(extra.limit_keys.get(name, b"")) for name in extra.limits}


def key_in(stored: bytes) -> Any:
    """The task key; the stored bytes themselves, if they are damaged."""
    try:
        return layer.unpack(stored)[0] if stored else None
    except UNPACKING:
        return stored


def seconds_or_never(time_us: int) -> float | None:
    return None if time_us == NEVER_US else time_us / 1_000_000


def delivered_value(record: Record) -> bytes:
    """The value of the delivery of a taken task: its lease, and the number of the attempt."""
    return record.session + record.token + NUMBER.pack(record.attempts)
