"""A stand-in for a ready task whose entry in the FIFO of its key is damaged.

A pointer at it holds the damaged bytes. Takers cannot read these either, so they mend the task, or set
it aside.
"""

from fdbqueue.records.keys import (
    ID_BYTES,
    INDEX_BYTES,
    NEVER_US,
    NUMBER,
    Record,
    id_in,
    record_to_bytes,
    sound_record,
)
from fdbqueue.seam import KeyValue
from fdbqueue.task import TaskState


class Unread(Record, frozen=True, array_like=True):
    raw: bytes = b""
    """The damaged bytes."""


def read(row: KeyValue, key: bytes, place: bytes) -> Record:
    """The task of the task key `key` at `place`, from its row in the FIFO."""
    id_ = id_in(row.key)
    return sound_record(row.value, id_) or Unread(
        id=id_,
        state=TaskState.READY,
        pri=_priority_in(place),
        created_us=0,
        expires_us=NEVER_US,
        ttr_us=NEVER_US,
        size_bytes=0,
        key=key,
        raw=row.value,
    )


def stored(record: Record) -> bytes:
    """The value of a pointer at this task."""
    return record.raw if isinstance(record, Unread) else record_to_bytes(record)


def _priority_in(place: bytes) -> int:
    """The priority with which some places begin. A place ends in an id, perhaps with an index before it."""
    has_priority = (len(place) - ID_BYTES) % INDEX_BYTES == NUMBER.size
    return int(NUMBER.unpack(place[: NUMBER.size])[0]) if has_priority else 0
