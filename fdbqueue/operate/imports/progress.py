"""Progress: the key that tells how far an import has come, written in the transaction that puts the items.

    R[11, queue, label]            progress   see Progress     the next step of the import
    R[11, queue, label, position]  skipped    empty            the next import: it tries the entry again

`queue` is the id of the queue: a drop of the queue clears its progress.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import OriginChanged
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.imports.origin import Position


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Append fields with a default; never reorder."""

    position: list[Any] | None = None
    """Position of the last entry that was put, left out or skipped."""
    mark: bytes = b""
    """The digest of that entry."""
    moved: int = 0
    step: bytes = b""
    """Random bytes of the step that wrote it."""

    def is_past(self, position: Position) -> bool:
        return self.position is not None and position <= tuple(self.position)


@dataclass(frozen=True)
class ProgressKeys:
    root: RootKeys
    queue: int
    label: str

    def read(self, tr: Transaction) -> Progress:
        found = tr.get(self.root.progress(self.queue, self.label)).value
        try:
            return Progress() if found is None else msgspec.msgpack.decode(bytes(found), type=Progress)
        except msgspec.DecodeError as reason:
            raise OriginChanged(label=self.label) from reason

    def write(self, tr: Transaction, progress: Progress) -> None:
        tr.set(self.root.progress(self.queue, self.label), msgspec.msgpack.encode(progress))

    def skip(self, tr: Transaction, position: Position) -> None:
        """Note a skipped entry. One with a position that is too long for a key is told once."""
        key = self.root.skipped(self.queue, self.label, position)
        if len(key) <= limits.KEY_BYTES_MAX:
            tr.set(key, b"")

    def unskip(self, tr: Transaction, position: Position) -> None:
        tr.clear(self.root.skipped(self.queue, self.label, position))

    def skipped(self, database: Database) -> Iterator[Position]:
        """Read the positions of skipped entries in their order, in bounded transactions."""
        under = self.root.all_skipped(self.queue, self.label)
        begin = under.start
        while keys := run(database, partial(self._keys, begin=begin, end=under.stop)):
            yield from map(self.root.position_of, keys)
            begin = keys[-1] + b"\x00"

    def _keys(self, tr: Transaction, begin: bytes, end: bytes) -> list[bytes]:
        rows = tr.snapshot.get_range(begin, end, limit=limits.BATCH_ITEMS_MAX).to_list()
        return [bytes(row.key) for row in rows]
