"""What the life cycle asks of a discipline.

A discipline keeps the indexes of ready tasks (`keys.ready`, which takers read and whose emptiness means that
there is nothing to take, and `keys.beside` if it needs more) and answers which of them is next. It is told of
every change of state, of several tasks at a time, so that it can issue its reads together. It knows nothing
of time, leases, or statistics.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from fdbqueue.aside import DAMAGED
from fdbqueue.records.keys import Record, record_of
from fdbqueue.seam import KeyValue, Transaction

Mend = Callable[[Transaction, bytes, bytes], Record | None]
"""Given the key of an index and a value that is no record of its task: the record, None if there is none."""


def no_mending(tr: Transaction, key: bytes, value: bytes) -> None:
    """What cannot be read is passed over."""


def read_index(tr: Transaction, rows: Iterable[KeyValue], mend: Mend) -> Iterator[Record]:
    """The records of an index. The key of each ends in the id of its task."""
    for row in rows:
        try:
            record = record_of(row.value)
        except DAMAGED:
            record = None
        if record is None or not row.key.endswith(record.id):
            record = mend(tr, row.key, row.value)
        if record is not None:
            yield record


class Discipline(Protocol):
    @property
    def index(self) -> slice:
        """Where all ready tasks are to be found, in the order of `filed`, those that cannot be taken too."""

    def filed(self, record: Record) -> bytes:
        """The key of a ready task in `index`; ends in its id."""

    def place(self, record: Record) -> bytes:
        """Where the task stands among those buried; ends in its id."""

    def ask_put(self, tr: Transaction, keys: Collection[bytes]) -> Callable[[Sequence[Record]], None]:
        """Ask what putting tasks of these keys needs; the reply, given the new tasks, files them."""

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        """Tasks were `olds` and are `news` now; those that are gone are only among the former."""

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        """Ask, by snapshot, which to take next; iterating waits. All of them may be taken together."""

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Add a read-conflict key for what taking `records` relies on besides the tasks themselves."""
