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

from collections.abc import Callable
from typing import Any

import msgspec

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
