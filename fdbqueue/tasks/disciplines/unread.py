"""A stand-in for a ready task whose entry in the FIFO of its key is damaged.

A pointer at it holds the damaged bytes. Takers cannot read these either, so they mend the task, or set
it aside.
"""

from fdbqueue.core.seam import KeyValue
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.records.keys import (
    ID_BYTES,
    NEVER_US,
    Record,
    id_in,
    priority_in,
    record_to_bytes,
    sound_record,
)


class Unread(Record, frozen=True, array_like=True):
    raw: bytes = b""
    """The damaged bytes."""


def read(row: KeyValue, key: bytes, place: bytes) -> Record:
    """The task of the task key `key` at `place`, from its row in the FIFO."""
    id_ = id_in(row.key)
    return sound_record(row.value, id_) or Unread(
        id=id_,
        state=TaskState.READY,
        pri=priority_in(place[:-ID_BYTES]),
        created_us=0,
        expires_us=NEVER_US,
        ttr_us=NEVER_US,
        size_bytes=0,
        key=key,
        raw=row.value,
    )


def stored(record: Record) -> bytes:
    return record.raw if isinstance(record, Unread) else record_to_bytes(record)
