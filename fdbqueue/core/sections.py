"""Sections: what an export reads of a queue, as rows turned into lines (operate/exports/).

A feature declares lines and sections of its own (tasks/rows.py). Bytes of a line are base64 in the file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.seam import KeyValue, Transaction

T = TypeVar("T")

Pair = tuple[bytes, bytes]
"""The last part of a key, and its value."""
Counts = dict[str, int]
NO_ROWS = slice(b"", b"")


class Line(msgspec.Struct, tag_field="line"):
    """Append fields with a default. A field that is not known here is ignored. Lines are never changed."""


class ContentLine(Line):
    """A line with contents of a queue."""


class KeyLine(ContentLine, tag="key"):
    """A key that is copied as it is; `key` is the part behind the prefix of the partition."""

    partition: int
    key: bytes
    value: bytes


class Batch(NamedTuple):
    lines: Sequence[ContentLine]
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


def rows_in(tr: Transaction, under: slice) -> Callable[[], list[Pair]]:
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


def set_rows(tr: Transaction, start: bytes, rows: Sequence[Pair]) -> None:
    for rest, value in rows:
        tr.set(start + rest, value)


class NotOurs(ValueError):
    """A line has contents that no export of this kind of queue has."""


def read_as(decode: Callable[[bytes], T], value: bytes) -> T:
    """Raises: NotOurs for damaged bytes."""
    try:
        return decode(value)
    except DAMAGED as reason:
        raise NotOurs(str(reason)) from reason
