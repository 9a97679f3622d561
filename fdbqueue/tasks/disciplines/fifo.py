"""Fifo: the oldest task is next. Priority: the one with the lowest `pri`, the oldest among equals."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.disciplines.discipline import Mended, no_mending, read_index
from fdbqueue.tasks.records.keys import NUMBER, Record, TaskKeys, record_to_bytes


class Fifo(Mended):
    """One ordered index; a task is available as soon as it is ready."""

    puts_read = False

    def __init__(self, keys: TaskKeys, _: Mapping[str, Any]) -> None:
        self._keys = keys
        self.index = keys.ready
        self.mend = no_mending

    def place(self, record: Record) -> bytes:
        id_ = record.id
        return id_ if id_[1] == self._keys.partition else self._keys.order_of(id_)

    def filed(self, record: Record) -> bytes:
        return self._keys.ready_at(self.place(record))

    def ask_put(
        self,
        tr: Transaction,
        keys: Collection[bytes],  # noqa: ARG002  # the discipline's interface
    ) -> Callable[[Sequence[Record]], None]:
        return partial(self.shift, tr, ())

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        for record in olds:
            if record.state == TaskState.READY:
                tr.clear(self.filed(record))
        for record in news:
            if record.state == TaskState.READY:
                tr.set(self.filed(record), record_to_bytes(record))

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        found = tr.snapshot.get_range(self.index.start, self.index.stop, limit=limit)
        return read_index(tr, found, self.mend)

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """No conflict keys: a take depends on the tasks alone."""


class Priority(Fifo):
    def place(self, record: Record) -> bytes:
        return NUMBER.pack(record.pri) + super().place(record)
