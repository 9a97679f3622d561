"""Section: a range of keys of one queue, which an export reads in batches, one transaction each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.aside import Aside, entry_in
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.operate.exports.lines import AsideLine, Content, Counts, KeyLine, ProgressLine, Row

IMPORT_LABEL = "export:"
"""The progress of an import of an export has a label that begins so; that of other imports does not."""

NO_ROWS = slice(b"", b"")


class Batch(NamedTuple):
    lines: Sequence[Content]
    used: int
    counts: Counts = {}


Read = Callable[[Transaction, Sequence[KeyValue]], Batch]
"""Turns the next rows of a section into lines; it uses one row at least."""


@dataclass(frozen=True)
class Section:
    under: slice
    read: Read

    def batch(self, tr: Transaction, begin: bytes) -> tuple[Batch, bytes]:
        """The next batch from the key `begin` on, and the key behind it; empty at the end of the section.

        Reads: at most limits.EXPORT_BATCH_ROWS rows and the keys that belong to them, by snapshot.
        """
        rows, is_end = _some(tr, begin or self.under.start, self.under.stop)
        if not rows:
            return Batch((), 0), b""
        found = self.read(tr, rows)
        ends = is_end and found.used == len(rows)
        return found, b"" if ends else bytes(rows[found.used - 1].key) + b"\x00"


def _some(tr: Transaction, begin: bytes, end: bytes) -> tuple[list[KeyValue], bool]:
    """The next rows, and true if there are no more."""
    rows, size_bytes = list[KeyValue](), 0
    for row in tr.snapshot.get_range(begin, end, limit=limits.EXPORT_BATCH_ROWS):
        rows.append(row)
        size_bytes += len(row.value)
        if size_bytes > limits.EXPORT_BATCH_BYTES:
            return rows, False
    return rows, len(rows) < limits.EXPORT_BATCH_ROWS


def single(key: bytes) -> slice:
    return slice(key, key + b"\x00")


def rows_in(tr: Transaction, under: slice) -> Callable[[], list[Row]]:
    """Ask for the rows of a range, by snapshot. The reply has them without the start of the range."""
    if under == NO_ROWS:
        return list
    found = tr.snapshot.get_range(under.start, under.stop)
    start = len(under.start)
    return lambda: [(bytes(row.key[start:]), bytes(row.value)) for row in found]


def as_they_are(under: slice, prefix: bytes, partition: int = 0) -> Section:
    def read(_: Transaction, rows: Sequence[KeyValue]) -> Batch:
        lines = [KeyLine(partition, bytes(row.key[len(prefix) :]), bytes(row.value)) for row in rows]
        return Batch(lines, len(rows))

    return Section(under, read)


def set_aside(aside: Aside) -> Section:
    """The values of a queue that were set aside. An entry that cannot be read is copied, too."""
    under = aside.entries

    def read(tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        asked: list[tuple[bytes, bytes, Callable[[], list[Row]]]] = []
        size_bytes = 0
        for row in rows:
            entry = entry_in(row.value)
            size_bytes += 0 if entry is None else sum(entry.sizes)
            if asked and size_bytes > limits.EXPORT_BATCH_BYTES:
                break
            id_ = bytes(row.key[len(under.start) :])
            start = aside.part(id_)
            asked.append((id_, bytes(row.value), rows_in(tr, slice(start, start + b"\xff" * 5))))
        lines = [AsideLine(id_, value, parts()) for id_, value, parts in asked]
        return Batch(lines, len(asked), {"set_aside": len(asked)})

    return Section(under, read)


def progress(root: RootKeys, id_: int) -> Section:
    under = root.imports_into(id_)
    prefix = under.start[:-1]

    def read(_: Transaction, rows: Sequence[KeyValue]) -> Batch:
        return Batch(list(_progress_lines(root, prefix, rows)), len(rows))

    return Section(under, read)


def _progress_lines(root: RootKeys, prefix: bytes, rows: Sequence[KeyValue]) -> Iterator[ProgressLine]:
    for row in rows:
        _, parts = root.shape_of(bytes(row.key))
        label = parts[1] if len(parts) > 1 else None
        if not (isinstance(label, str) and label.startswith(IMPORT_LABEL)):
            yield ProgressLine(bytes(row.key[len(prefix) :]), bytes(row.value))
