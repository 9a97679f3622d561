"""The place of a task's payload: a small one is in its record, a larger one beside it, in pieces.

A small payload costs no key and no round trip: a take reads it with the index. A larger payload is written
once, and not again with every change of the record.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.codec import PayloadCodec, pieces_of
from fdbqueue.core.errors import PayloadUnreadable
from fdbqueue.core.registry import UNPACKING
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import OpenTask, Task, TaskState
from fdbqueue.core.trace_context import unpacked
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks.records.keys import NEVER_US, NUMBER, Extra, Record, TaskKeys, id_text


def for_record(payload: bytes) -> bytes:
    return payload if len(payload) <= limits.RECORD_PAYLOAD_BYTES_MAX else b""


def set_payload(tr: Transaction, keys: TaskKeys, record: Record, payload: bytes) -> None:
    """Write the payload beside its record, if the record does not hold it."""
    if len(payload) != len(record.payload):
        for number, piece in enumerate(pieces_of(payload)):
            tr.set(keys.payload(record.id, number), piece)


def ask_payload(tr: Any, keys: TaskKeys, record: Record) -> Callable[[], bytes]:
    """Ask for the payload, by snapshot: it changes, or is cleared, only together with its record."""
    if len(record.payload) == record.size_bytes:  # as `is_held_by`
        return record.payload.__bytes__  # a call of C: itself
    if _is_whole(record):
        whole = tr.snapshot.get(keys.payload(record.id, 0))
        return lambda: _complete(record, whole.value or b"")
    under = keys.payloads_of(record.id)
    pieces = tr.snapshot.get_range(under.start, under.stop)
    return lambda: _complete(record, b"".join(piece.value for piece in pieces))


def ask_stored(tr: Any, keys: TaskKeys, record: Record) -> Callable[[TaskKeys], None]:
    """Ask for the pieces beside the record. The reply stores them in another partition, all there or not."""
    under = keys.payloads_of(record.id)
    rows = () if is_held_by(record) else tr.snapshot.get_range(under.start, under.stop)

    def store(there: TaskKeys) -> None:
        for row in list(rows):
            tr.set(there.payloads_of(record.id).start + row.key[len(under.start) :], row.value)

    return store


def clear_payload(tr: Any, keys: TaskKeys, record: Record) -> None:
    if len(record.payload) == record.size_bytes:
        return
    if _is_whole(record):
        tr.clear(keys.payload(record.id, 0))
    else:
        under = keys.payloads_of(record.id)
        tr.clear_range(under.start, under.stop)


def _complete(record: Record, payload: bytes) -> bytes:
    if len(payload) != record.size_bytes:
        reason = f"{len(payload)} of its {record.size_bytes} bytes are there"
        raise PayloadUnreadable(codec="any", reason=reason)
    return bytes(payload)


def is_held_by(record: Record) -> bool:
    return len(record.payload) == record.size_bytes


def _is_whole(record: Record) -> bool:
    return record.size_bytes <= limits.PAYLOAD_PIECE_BYTES_MAX


_NO_EXTRA = Extra()
_STATES = {state.value: state for state in TaskState}


def shown_tasks(tr: Any, keys: TaskKeys, codec: PayloadCodec, records: Sequence[Record]) -> list[Task]:
    """The tasks for a listing, payloads read together. An Unreadable stands for data that cannot be read."""
    asked = ask_payloads(tr, keys, records)
    return [task_of(record, shown(codec, payload)) for record, payload in zip(records, asked, strict=True)]


def ask_payloads(tr: Any, keys: TaskKeys, records: Sequence[Record]) -> list[Callable[[], bytes]]:
    return list(map(partial(ask_payload, tr, keys), records))


def task_of(record: Record, data: Any) -> Task:
    extra = record.extra or _NO_EXTRA
    task: Any = OpenTask()
    task.id = id_text(record.id)
    task.state = _STATES[record.state]
    task.data = data
    task.pri = record.pri
    task.key = key_in(record.key) if record.key else None
    task.attempts = record.attempts
    task.failures = record.failures - record.forgiven - record.excused
    task.orphaned = record.orphaned
    task.created = record.created_us / 1_000_000
    task.expires = None if record.expires_us == NEVER_US else record.expires_us / 1_000_000
    task.until = None if record.until_us == NEVER_US else record.until_us / 1_000_000
    task.token = record.token or None
    task.taken = record.taken_us / 1_000_000 if record.taken_us else None
    task.session = record.session.hex() or None
    task.trace = unpacked(record.trace) if record.trace else None
    task.cancel_asked = record.cancelled_us / 1_000_000 if record.cancelled_us else None
    task.fraction = record.fraction
    task.fraction_told = record.told_us / 1_000_000 if record.told_us else None
    task.headers = record.extra.headers if record.extra else {}
    task.limits = _limits_of(extra) if extra.limits else {}
    task.result_ttl = extra.result_ttl_us / 1_000_000 if extra.result_ttl_us else None
    task.steps = extra.steps
    task.unique = key_in(extra.unique.key) if extra.unique else None
    task.groups = tuple(member.group.hex() for member in extra.groups) if extra.groups else ()
    task.waits_for = extra.waits.hex() or None
    task.existed = False
    task.__class__ = Task
    return task  # type: ignore[no-any-return]  # it is one now


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
