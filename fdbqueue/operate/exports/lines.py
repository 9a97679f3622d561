"""The lines of an export: one JSON object each. Bytes are base64. docs/backup.md describes them.

export                                     the first line
  limit                                    the limits that the next queue names
  queue                                    its definition
    window, result, ended, task, turn,     its contents, in batches
    item, element, aside, key, progress
    mark                                   the end of each batch: a resumed export begins behind it
  done                                     the end of the queue
end                                        the last line: without it, the export is unfinished
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.aside import Aside, entry_in
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.tasks.limiting.rule import Rule

FORMAT = 1
"""A change that an earlier release would misread raises it."""

Row = tuple[bytes, bytes]
"""The last part of a key, and its value."""
Counts = dict[str, int]


class Line(msgspec.Struct, tag_field="line"):
    """Append fields with a default. A field that is not known here is ignored. Lines are never changed."""


class Header(Line, tag="export"):
    format: int
    id: str
    """Random; it tells this export from all others."""
    release: str
    """That of the package that began it."""
    names: list[str]
    """The queues that were asked for, in order; empty for all."""
    in_use: bool
    leave_out: bool


class LimitLine(Line, tag="limit"):
    name: str
    rule: Rule


class QueueLine(Line, tag="queue"):
    name: str
    id: int
    """In the database of its origin."""
    kind: str
    options: dict[str, Any]
    takes: int = 0
    """Takes of a task queue before its export; a take during the export spoils it."""
    unreadable_limits: int = 0
    """Limits that the queue names, and that have no line, as they cannot be read."""


class WindowLine(Line, tag="window"):
    """A unique key with a scope in seconds."""

    until_us: int
    key: bytes
    id: bytes


class ResultLine(Line, tag="result"):
    id: bytes
    value: bytes
    pieces: list[Row]


class EndedLine(Line, tag="ended"):
    """An ended task that a queue with `retain_s` keeps."""

    partition: int
    id: bytes
    value: bytes


class TaskLine(Line, tag="task"):
    partition: int
    record: bytes
    """Without a lease."""
    payload: list[Row] = []
    """Pieces of a payload that the record does not hold, by the part of their keys behind the id."""
    failures: list[Row] = []
    steps: list[Row] = []


class TurnLine(Line, tag="turn"):
    """The round of a task key of a fair queue, and the units of its quota that are used."""

    partition: int
    key: bytes
    round: int
    used: int


class ItemLine(Line, tag="item"):
    partition: int
    suffix: bytes
    value: bytes
    pieces: list[Row] = []


class ElementLine(Line, tag="element"):
    """Without its lock."""

    name: str
    pieces: list[Row]


class AsideLine(Line, tag="aside"):
    id: bytes
    entry: bytes
    parts: list[Row]


class KeyLine(Line, tag="key"):
    """A key that is copied as it is; `key` is the part behind the prefix of the partition."""

    partition: int
    key: bytes
    value: bytes


class ProgressLine(Line, tag="progress"):
    """The progress of an import from another system; `key` is the part behind the id of the queue."""

    key: bytes
    value: bytes


class Mark(Line, tag="mark"):
    section: int
    """The number of the part of the queue that is being read."""
    after: bytes
    """The part goes on at this key, without the prefix of the root; empty at its end."""
    counts: Counts
    """Those of the queue so far."""


class DoneLine(Line, tag="done"):
    name: str
    counts: Counts


class End(Line, tag="end"):
    queues: int


Content = (
    WindowLine
    | ResultLine
    | EndedLine
    | TaskLine
    | TurnLine
    | ItemLine
    | ElementLine
    | AsideLine
    | KeyLine
    | ProgressLine
)
AnyLine = Header | LimitLine | QueueLine | Content | Mark | DoneLine | End

line_to_json = msgspec.json.Encoder().encode
line_of: Callable[[bytes], AnyLine] = msgspec.json.Decoder(AnyLine).decode
"""Decode a line. Raises one of aside.DAMAGED."""


def opening_of(kind: type[Line]) -> bytes:
    config = kind.__struct_config__
    return line_to_json({config.tag_field: config.tag}).removesuffix(b"}")


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
