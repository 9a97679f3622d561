"""Imports: copies of the items of another system's queue, resumed after a kill without a loss or a double.

Each step puts a batch and moves the progress, in one transaction. After a kill, or an unknown result of a
commit, the progress tells if a step was done. Two imports of one origin into one queue conflict: the later
one finds the step of the other, and ends.

R[11, queue, label]            progress   see Progress     the next step of the import
    R[11, queue, label, position]  skipped    empty            the next import: it tries the entry again

`queue` is the id of the queue: a drop of the queue clears its progress.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_payload
from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import ImportOvertaken, OriginChanged
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.visible import shown, told
from fdbqueue.operate.origins import UNMARKED, Entry, Fate, Origin, Position, Prepared, Target


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

    def skipped(self, database: Database) -> Iterator[Position]:
        """Read the positions of skipped entries in their order, in bounded transactions."""
        under = self.root.all_skipped(self.queue, self.label)
        begin = under.start

        def read(tr: Transaction) -> list[bytes]:
            rows = tr.snapshot.get_range(begin, under.stop, limit=limits.BATCH_ITEMS_MAX).to_list()
            return [bytes(row.key) for row in rows]

        while keys := run(database, read):
            yield from map(self.root.position_of, keys)
            begin = keys[-1] + b"\x00"


STEP_BYTES = 12


@dataclass
class Step:
    moved: list[Prepared] = field(default_factory=list)
    left_out: list[Prepared] = field(default_factory=list)
    skipped: list[Prepared] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Sequence[Prepared], target: Target) -> "Step":
        step = cls()
        for one in batch:
            taken = step.moved if one.problem is None else step.skipped
            (taken if target.takes(one.entry.fate) else step.left_out).append(one)
        return step


class Reading:
    def __init__(self, origin: Origin, codec: PayloadCodec, convert: Callable[[Any], Any]) -> None:
        self.origin = origin
        self._codec = codec
        self._convert = convert

    def prepared(self, entry: Entry) -> Prepared:
        if entry.fate is Fate.LEFT_OUT:
            return Prepared(entry)
        if entry.damage is not None:
            return Prepared(entry, problem=told(entry.damage))
        if entry.pri is not None and not (type(entry.pri) is int and 0 <= entry.pri <= limits.PRIORITY_MAX):
            said = f"its priority {shown(entry.pri)} is not one of 0 to {limits.PRIORITY_MAX}"
            return Prepared(entry, problem=said)
        try:
            value = self._convert(self.origin.value(entry))
            return Prepared(entry, value, len(checked_payload(self._codec.encode(value))))
        except Exception as reason:  # a MemoryError, too: a damaged length may ask for any memory
            return Prepared(entry, problem=told(f"{type(reason).__name__}: {reason}"))


def dry_steps(reading: Reading, target: Target) -> Iterator[Step]:
    """Read and encode all entries, and write nothing."""
    for entry in reading.origin.entries():
        yield Step.of([reading.prepared(entry)], target)


class Import:
    def __init__(self, database: Database, keys: ProgressKeys, reading: Reading, target: Target) -> None:
        self._database = database = database.at("background")
        self._keys = keys
        self._reading = reading
        self._target = target
        self._before = run(database, keys.read)
        self.moved_earlier = self._before.moved

    def steps(self) -> Iterator[Step]:
        """Put all entries that no earlier import has put; each step was committed. Raises: OriginChanged."""
        self._require_same_origin()
        for batch in self._batches():
            step = Step.of(batch, self._target)
            after = self._after(batch, step)
            run_once(self._database, self._keys.root, partial(self._write, step=step, after=after))
            self._before = after
            yield step

    def _require_same_origin(self) -> None:
        """Refuse an origin in which the last entry of the earlier import is missing."""
        if self._before.position is None:
            return
        last = tuple(self._before.position)
        found = next((one for one in self._reading.origin.entries() if one.position >= last), None)
        marks = {self._before.mark, b"" if found is None else found.mark()}
        if found is None or found.position != last or (len(marks) > 1 and UNMARKED not in marks):
            raise OriginChanged(label=self._reading.origin.label)

    def _batches(self) -> Iterator[list[Prepared]]:
        """Split the entries that are left into batches, each small enough for one transaction."""
        batch: list[Prepared] = []
        size_bytes = 0
        for one in map(self._reading.prepared, self._entries()):
            full = len(batch) == self._target.batch_items
            if batch and (full or size_bytes + one.size_bytes > limits.IMPORT_BATCH_BYTES):
                yield batch
                batch, size_bytes = [], 0
            batch.append(one)
            size_bytes += one.size_bytes
        if batch:
            yield batch

    def _entries(self) -> Iterator[Entry]:
        start = self._before
        skipped = self._keys.skipped(self._database)
        again = next(skipped, None)
        for entry in self._reading.origin.entries():
            while again is not None and again < entry.position:
                again = next(skipped, None)
            if not start.is_past(entry.position) or entry.position == again:
                yield entry

    def _after(self, batch: Sequence[Prepared], step: Step) -> Progress:
        last = batch[-1].entry
        moved = self._before.moved + len(step.moved)
        random = self._database.runtime.random_bytes(STEP_BYTES)
        if self._before.is_past(last.position):
            return Progress(self._before.position, self._before.mark, moved, random)
        mark = UNMARKED if batch[-1].problem else last.mark()  # a skipped one may be mended
        return Progress(list(last.position), mark, moved, random)

    def _write(self, tr: Transaction, step: Step, after: Progress) -> None:
        """Put the entries of a step with the progress, so that an import of the same origin conflicts."""
        found = self._keys.read(tr)
        if found == after:
            return  # the attempt before has committed, with an unknown result
        if found != self._before:
            raise ImportOvertaken(label=self._reading.origin.label)
        self._target.put(tr, step.moved)
        for one in step.skipped:
            self._keys.skip(tr, one.entry.position)
        for one in chain(step.moved, step.left_out):
            if self._before.is_past(one.entry.position):
                tr.clear(self._keys.root.skipped(self._keys.queue, self._keys.label, one.entry.position))
        self._keys.write(tr, after)
