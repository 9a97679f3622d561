"""The interface between the life cycle of tasks and a discipline.

A discipline keeps the indexes of ready tasks and answers which task is next. Takers read `keys.ready`; if
that is empty, there is nothing to take. `keys.beside` is for further indexes. The life cycle reports every
change of state, of several tasks at a time, so that a discipline can issue its reads together. A discipline
does not depend on time, leases or statistics.

A pointer at it holds the damaged bytes. Takers cannot read these either, so they mend the task, or set
it aside.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.records.keys import (
    ID_BYTES,
    NEVER_US,
    Record,
    id_in,
    priority_in,
    record_of,
    record_to_bytes,
    sound_record,
)

Mend = Callable[[Transaction, bytes, bytes], Record | None]
"""Given an index key with a damaged value: the record of its task, or None."""


def no_mending(tr: Transaction, key: bytes, value: bytes) -> None:
    """A `Mend` that passes damaged entries over."""


def read_index(tr: Transaction, rows: Iterable[KeyValue], mend: Mend) -> Iterator[Record]:
    """The records of index `rows`; each key ends in the id of its task. Damaged ones are mended."""
    for row in rows:
        try:
            record = record_of(row.value)
        except DAMAGED:
            record = None
        if record is None or not row.key.endswith(record.id):
            record = mend(tr, row.key, row.value)
        if record is not None:
            yield record


class Mended:
    """Base of a discipline whose damaged entries its queue mends."""

    mend: Mend


class Discipline(Protocol):
    @property
    def index(self) -> slice:
        """The range of all ready tasks, in the order of `filed`, with those that may not be taken now."""

    def filed(self, record: Record) -> bytes:
        """The key of a ready task in `index`; it ends in the task's id."""

    def place(self, record: Record) -> bytes:
        """The order of the task among buried ones; it ends in the task's id."""

    def ask_put(self, tr: Transaction, keys: Collection[bytes]) -> Callable[[Sequence[Record]], None]:
        """Issue the reads for a put of tasks with these task keys; the reply files the new tasks."""

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        """Update the indexes after a change from `olds` to `news`; ended tasks are in `olds` only."""

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        """Ask, by snapshot, for the next tasks; iterating waits. All of them may be taken together."""

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Add read-conflict keys for a take of `records`, apart from those of the tasks themselves."""


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
