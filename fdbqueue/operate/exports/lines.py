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
from typing import Any, Union

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import Batch, ContentLine, Counts, KeyLine, Line, Pair, Section, rows_in
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.unreadable import Aside, entry_in
from fdbqueue.tasks.feature import all_features
from fdbqueue.tasks.limits.rule import Rule

FORMAT = 2
"""A change that an earlier release would misread raises it."""


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


class TaskLine(ContentLine, tag="task"):
    partition: int
    record: bytes
    """Without a lease."""
    payload: list[Pair] = []
    """Pieces of a payload that the record does not hold, by the part of their keys behind the id."""
    failures: list[Pair] = []
    beside: dict[str, list[Pair]] = {}
    """Other rows beside the record, by the name of their feature."""


class TurnLine(ContentLine, tag="turn"):
    """The round of a task key of a fair queue, and the units of its quota that are used."""

    partition: int
    key: bytes
    round: int
    used: int


class ItemLine(ContentLine, tag="item"):
    partition: int
    suffix: bytes
    value: bytes
    pieces: list[Pair] = []


class ElementLine(ContentLine, tag="element"):
    """Without its lock."""

    name: str
    pieces: list[Pair]


class AsideLine(ContentLine, tag="aside"):
    id: bytes
    entry: bytes
    parts: list[Pair]


class ProgressLine(ContentLine, tag="progress"):
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


_OURS = (
    *(Header, LimitLine, QueueLine, Mark, DoneLine, End),
    *(TaskLine, TurnLine, ItemLine, ElementLine, AsideLine, KeyLine, ProgressLine),
)
_OF_FEATURES = [line for one in all_features() if one.rows is not None for line in one.rows.lines]

line_to_json = msgspec.json.Encoder().encode
line_of: Callable[[bytes], Line] = msgspec.json.Decoder(Union[(*_OURS, *_OF_FEATURES)]).decode
"""Decode a line. Raises one of aside.DAMAGED."""


def opening_of(kind: type[Line]) -> bytes:
    config = kind.__struct_config__
    return line_to_json({config.tag_field: config.tag}).removesuffix(b"}")


IMPORT_LABEL = "export:"
"""The progress of an import of an export has a label that begins so; that of other imports does not."""


def set_aside(aside: Aside) -> Section:
    """The values of a queue that were set aside. An entry that cannot be read is copied, too."""
    under = aside.entries

    def read(tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        asked: list[tuple[bytes, bytes, Callable[[], list[Pair]]]] = []
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
