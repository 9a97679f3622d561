"""Fifo: the task that came first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fdbqueue.seam import Transaction
from fdbqueue.tasks.keys import Record, TaskKeys, record_of, record_to_bytes


class Fifo:
    """One ordered index; a task is available as soon as it is ready."""

    def __init__(self, keys: TaskKeys, _: Mapping[str, Any]) -> None:
        self._keys = keys

    def place(self, record: Record) -> bytes:
        return record.id

    def enter(self, tr: Transaction, records: Sequence[Record]) -> None:
        for record in records:
            tr.set(self._keys.ready_at(self.place(record)), record_to_bytes(record))

    def leave(self, tr: Transaction, records: Sequence[Record]) -> None:
        for record in records:
            tr.clear(self._keys.ready_at(self.place(record)))

    def hold(self, tr: Transaction, records: Sequence[Record]) -> None:
        """A task that is taken keeps nobody else from being taken."""

    def free(self, tr: Transaction, records: Sequence[Record]) -> None:
        """And one that is not taken any more makes nobody available."""

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        ready = self._keys.ready
        found = tr.snapshot.get_range(ready.start, ready.stop, limit=limit)
        return (record_of(entry.value) for entry in found)

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Nothing besides the tasks themselves."""
