"""The place of a task's payload: a small one is in its record, a larger one beside it, in pieces.

A small payload costs no key and no round trip: a take reads it with the index. A larger payload is written
once, and not again with every change of the record.
"""

from collections.abc import Callable
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.codec import pieces_of
from fdbqueue.core.errors import PayloadUnreadable
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.records.keys import Record, TaskKeys


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
        return lambda: record.payload
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
