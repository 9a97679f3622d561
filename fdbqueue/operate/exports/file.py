"""The file of an export: lines with chained checksums, so that no line can be cut, changed, lost or moved.

    16 hexadecimal digits, a space, a JSON object, a newline

The digits are the BLAKE2b digest, of 8 bytes, of the digest of the line before and the JSON text. Before the
first line, that digest is empty. Only the last line of a finished file is an `end`.

Bytes are base64.

export                                     the first line
  limit                                    the limits that the next queue names
  queue                                    its definition
    window, result, ended, task, turn,     its contents, in batches
    item, element, aside, key, progress
    mark                                   the end of each batch: a resumed export begins behind it
  done                                     the end of the queue
end                                        the last line: without it, the export is unfinished
"""

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, Union

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.errors import ExportInUse, ExportUnusable
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import Batch, ContentLine, Counts, KeyLine, Line, Pair, Section, rows_in
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.unreadable import DAMAGED, Aside, entry_in
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


class CallsLine(ContentLine, tag="calls"):
    """How often each verb was called in a partition."""

    partition: int
    counts: Counts


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
    *(TaskLine, TurnLine, CallsLine, ItemLine, ElementLine, AsideLine, KeyLine, ProgressLine),
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
        lines = list[ProgressLine]()
        for row in rows:
            label = next(iter(root.shape_of(bytes(row.key))[1][1:]), None)
            if not (isinstance(label, str) and label.startswith(IMPORT_LABEL)):
                lines.append(ProgressLine(bytes(row.key[len(prefix) :]), bytes(row.value)))
        return Batch(lines, len(rows))

    return Section(under, read)


DIGEST_BYTES = 8
_DIGITS = 2 * DIGEST_BYTES
_FIRST = b" " + opening_of(Header)
"""The bytes behind the digits of a first line. They tell an export from another file."""
_END, _END_BYTES_MAX = b" " + opening_of(End), 200
"""The bytes behind the digits of the last line of a finished export, and more than the bytes of that line."""
_DAMAGED = "it is a finished export, and damaged: name another file"


class Place(NamedTuple):
    """The end of a line: its offset, and its digest."""

    offset: int = 0
    digest: bytes = b""


class Read(NamedTuple):
    """A line, and the place behind it."""

    line: Line
    place: Place


class Broken(Exception):
    """The next line is not whole, or not the one that was written there."""


def sealed(line: Line, digest: bytes) -> tuple[bytes, bytes]:
    """The bytes of a line behind one with that digest, and its own digest."""
    text = line_to_json(line)
    own = _digest(digest, text)
    return own.hex().encode() + b" " + text + b"\n", own


def lines_in(stream: BinaryIO, place: Place) -> Iterator[Read]:
    """Read the lines behind a place. Raises Broken."""
    stream.seek(place.offset)
    offset, digest = place
    while raw := stream.readline(limits.EXPORT_LINE_BYTES_MAX):
        text = raw[_DIGITS + 1 : -1]
        digest = _digest(digest, text)
        if raw[: _DIGITS + 1] != digest.hex().encode() + b" " or not raw.endswith(b"\n"):
            raise Broken
        offset += len(raw)
        try:
            line = line_of(text)
        except DAMAGED as reason:
            raise ValueError(str(reason)) from reason
        yield Read(line, Place(offset, digest))


def _digest(before: bytes, text: bytes) -> bytes:
    return blake2b(before + text, digest_size=DIGEST_BYTES).digest()


class State(NamedTuple):
    """How far an unfinished export has come. `place` is behind the last line that ends something."""

    place: Place = Place()
    header: Header | None = None
    queue: QueueLine | None = None
    """The queue that is being read."""
    mark: Mark | None = None
    """The end of its last batch."""
    last: str = ""
    """The name of the last queue that is done."""
    done: int = 0
    is_finished: bool = False

    def behind(self, found: Read) -> "State":
        line = found.line
        if isinstance(line, Header):
            return self._replace(place=found.place, header=line)
        if isinstance(line, QueueLine):
            return self._replace(place=found.place, queue=line, mark=None)
        if isinstance(line, Mark):
            return self._replace(place=found.place, mark=line)
        if isinstance(line, DoneLine):
            last, done = line.name, self.done + 1
            return self._replace(place=found.place, queue=None, mark=None, last=last, done=done)
        return self._replace(place=found.place, is_finished=True) if isinstance(line, End) else self


class _OpenFile(ABC):
    """A file that is judged when it is opened, and closed if it is refused or its block ends."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self._stream = path, stream
        try:
            self._begin()
        except BaseException:
            stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    @abstractmethod
    def _begin(self) -> None:
        """Judge the file. Raises: an error that refuses it."""


class ExportFile(_OpenFile):
    """A file that an export writes. It is locked, and the lines behind its last whole batch are cut off."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises: ExportInUse; ExportUnusable for another file, or an export of other queues; OSError."""
        self._header = header
        self._was_there = path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        super().__init__(path, os.fdopen(os.open(path, flags, 0o600), "r+b"))

    def _begin(self) -> None:
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportInUse(path=str(self.path)) from None
        self._require_name()
        self.state = self._read()
        self._is_new = self.state.header is None
        if self.state.header is None:
            self.write([self._header])
        elif (reason := _other(self.state.header, self._header)) is not None:
            raise ExportUnusable(path=str(self.path), reason=reason)
        else:
            self._stream.truncate(self.state.place.offset)

    def _require_name(self) -> None:
        """Refuse a file that another process discarded after this one had opened it."""
        try:
            is_named = os.path.samefile(self.path, self._stream.fileno())
        except FileNotFoundError:
            is_named = False
        if not is_named:
            raise ExportInUse(path=str(self.path))

    def discard(self) -> None:
        """Leave the path as a new export found it: without a file, or with an empty one."""
        if not self._is_new:
            return
        if not self._was_there:
            self.path.resolve().unlink()
        self._stream.truncate(0)

    def _read(self) -> State:
        require_export(self.path, self._stream)
        state = State()
        try:
            for found in lines_in(self._stream, Place()):
                state = state.behind(found)
        except (Broken, ValueError):
            if self._ends_finished():
                raise ExportUnusable(path=str(self.path), reason=_DAMAGED) from None
        return state

    def _ends_finished(self) -> bool:
        """True if the last line is whole, and ends an export: damage before it is no interrupted write."""
        self._stream.seek(max(0, os.fstat(self._stream.fileno()).st_size - _END_BYTES_MAX))
        tail = self._stream.read()
        return tail.endswith(b"}\n") and _END in tail.splitlines()[-1]

    def write(self, lines: Iterable[Line]) -> None:
        """Append lines; the last one ends a batch, or more."""
        offset, digest = self.state.place
        self._stream.seek(offset)
        for line in lines:
            raw, digest = sealed(line, digest)
            offset += len(raw)
            self._stream.write(raw)
            self.state = self.state.behind(Read(line, Place(offset, digest)))
        self._stream.flush()

    def sync(self) -> None:
        os.fsync(self._stream.fileno())
        folder = os.open(self.path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def require_export(path: Path, stream: BinaryIO) -> None:
    """Raises: ExportUnusable for a file of something else. An empty file may become an export."""
    stream.seek(0)
    first = stream.read(_DIGITS + len(_FIRST))
    if first and first[_DIGITS:] != _FIRST:
        raise ExportUnusable(path=str(path), reason="it is no export of fdbqueue")


def _other(found: Header, wanted: Header) -> str | None:
    """The reason why the export in a file is not the one that is wanted; None if it is."""
    if found.format != FORMAT:
        return f"its format is {found.format}, and this release writes {FORMAT}"
    given = (found.names, found.in_use, found.leave_out)
    if given != (wanted.names, wanted.in_use, wanted.leave_out):
        return "it was begun with other queues or options: repeat these, or name another file"
    return None


class Found(NamedTuple):
    """A queue in a finished export. `place` is behind the line of its definition."""

    queue: QueueLine
    limits: Sequence[LimitLine]
    place: Place


class FinishedFile(_OpenFile):
    """A finished export. The whole file has been checked before anything of it is used."""

    def __init__(self, path: Path) -> None:
        """Raises: ExportUnusable, with the reason; OSError."""
        super().__init__(path, path.open("rb"))

    def lines(self, place: Place) -> Iterator[Read]:
        """Read the lines behind a place. Raises: ExportUnusable if the file has changed since its check."""
        try:
            yield from lines_in(self._stream, place)
        except (Broken, ValueError) as reason:
            raise ExportUnusable(path=str(self.path), reason="it changes while it is read") from reason

    def _begin(self) -> None:
        """Read the whole file, and keep its first line, and its queues by name."""
        require_export(self.path, self._stream)
        state, named, self.queues = State(), list[LimitLine](), dict[str, Found]()
        for found in self._checked():
            state = state.behind(found)
            if isinstance(found.line, Header) and found.line.format != FORMAT:
                raise self._unusable(f"its format is {found.line.format}, and this release reads {FORMAT}")
            if isinstance(found.line, LimitLine):
                named.append(found.line)
            if isinstance(found.line, QueueLine):
                self.queues[found.line.name] = Found(found.line, named, found.place)
                named = []
        if state.header is None or not state.is_finished:
            raise self._unusable("it is unfinished: run the same `fdbqueue export` again")
        self.header = state.header

    def _checked(self) -> Iterator[Read]:
        """Read all lines. Raises: ExportUnusable for damage, and for lines that no export has."""
        number, is_finished = 0, False
        try:
            for found in lines_in(self._stream, Place()):
                if is_finished:
                    raise Broken
                number, is_finished = number + 1, isinstance(found.line, End)
                yield found
        except Broken:
            raise self._unusable(f"it is damaged or cut short behind line {number}") from None
        except ValueError as reason:
            raise self._unusable(f"line {number + 1} is none of an export ({reason})") from reason

    def _unusable(self, reason: str) -> ExportUnusable:
        return ExportUnusable(path=str(self.path), reason=reason)
