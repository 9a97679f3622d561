"""The uncommitted writes of a transaction, what they are made of, and the request of their commit.

Each written key has an entry:

    bytes       its value: it was set, or an atomic operation was applied to a known value
    None        it was cleared
    Pending     atomic operations on a stored value that is not known yet, or with the commit's versionstamp

Cleared ranges lie beside the entries; an entry inside a cleared range is newer than the clear. Entries of
bytes and None, and cleared ranges, are *independent* of the database: reading them conflicts with no write.
Source of the rules: ReadYourWrites and WriteMap of FoundationDB 7.3, and measurements on its server.

The atomic operations are those of FoundationDB 7.3, as pure functions of (existing value, operand). The
existing value is None if the key is absent; the result is None if the key is to be cleared. Source of their
rules: MutationType in fdb.options, at API version 510 and later (`min` and `and` of an absent key store the
operand).

A versionstamp has 8 bytes of commit version and 2 bytes of order in its batch. The last four bytes of a
template key or value are the offset of the stamp, little-endian (API version 520).

A commit request also has a form as bytes, for other processes. It says when its commit has to reach the disk.
A commit that is flushed takes all commits before it along.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from math import inf
from typing import Any

import msgspec
from sortedcontainers import SortedList

from fdbqueue.core.limits import VALUE_BYTES_MAX
from fdbqueue.core.runtime import Lock
from fdbqueue.core.seam import FDBError

KeyRange = tuple[bytes, bytes]


class RangeSet(msgspec.Struct, eq=False, array_like=True):
    """Disjoint, sorted, half-open ranges; adjacent ranges are merged."""

    begins: list[bytes] = []
    ends: list[bytes] = []

    def __iter__(self) -> Iterator[KeyRange]:
        return zip(self.begins, self.ends, strict=True)

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self.begins, key) - 1
        return at >= 0 and key < self.ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        first = bisect_left(self.ends, begin)
        last = bisect_right(self.begins, end)
        if first < last:
            begin = min(begin, self.begins[first])
            end = max(end, self.ends[last - 1])
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        first = bisect_right(self.ends, begin)
        last = bisect_left(self.begins, end)
        kept: list[KeyRange] = []
        if first < last:
            if self.begins[first] < begin:
                kept.append((self.begins[first], begin))
            if end < self.ends[last - 1]:
                kept.append((end, self.ends[last - 1]))
        self.begins[first:last] = [b for b, _ in kept]
        self.ends[first:last] = [e for _, e in kept]

    def within(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        at = bisect_right(self.ends, begin)
        while at < len(self.begins) and self.begins[at] < end:
            yield max(begin, self.begins[at]), min(end, self.ends[at])
            at += 1

    def gaps(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        for inner_begin, inner_end in self.within(begin, end):
            if begin < inner_begin:
                yield begin, inner_begin
            begin = inner_end
        if begin < end:
            yield begin, end


class KeySet(msgspec.Struct, eq=False, array_like=True):
    """Single keys and ranges, as one transaction reads or one commit writes them. Most are single keys, so
    these are a hash set. They are sorted when a range is first compared with them.
    """

    points: set[bytes] = set()
    ranges: list[KeyRange] = []
    _sorted: list[bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self.points or self.ranges)

    def add_range(self, begin: bytes, end: bytes) -> None:
        # The batches of one range read are adjacent, so they make one range.
        if self.ranges and self.ranges[-1][1] == begin:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((begin, end))

    def update(self, other: "KeySet") -> None:
        self.points |= other.points
        self.ranges += other.ranges
        self._sorted = None

    def meets(self, other: "KeySet") -> bool:
        if not self.points.isdisjoint(other.points):
            return True
        if not self.ranges and not other.ranges:
            return False
        return (
            any(other._has_point_in(begin, end) for begin, end in self.ranges)
            or any(self._has_point_in(begin, end) for begin, end in other.ranges)
            or any(b < f and e < d for b, d in self.ranges for e, f in other.ranges)
        )

    def _has_point_in(self, begin: bytes, end: bytes) -> bool:
        if self._sorted is None or len(self._sorted) != len(self.points):
            self._sorted = sorted(self.points)
        at = bisect_left(self._sorted, begin)
        return at < len(self._sorted) and self._sorted[at] < end

    def __contains__(self, key: bytes) -> bool:
        return key in self.points or any(begin <= key < end for begin, end in self.ranges)


ADD, AND, OR, XOR, APPEND_IF_FITS = 2, 6, 7, 8, 9
MAX, MIN = 12, 13
SET_VERSIONSTAMPED_KEY, SET_VERSIONSTAMPED_VALUE = 14, 15
BYTE_MIN, BYTE_MAX, COMPARE_AND_CLEAR = 16, 17, 20

Existing = bytes | None
Operation = Callable[[Existing, bytes], bytes | None]


def _fit(existing: bytes, operand: bytes) -> bytes:
    """Return the existing value at the operand's width: cut, or padded with zeros at the high end."""
    return existing[: len(operand)].ljust(len(operand), b"\x00")


def _as_int(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _add(existing: Existing, operand: bytes) -> bytes:
    if not existing or not operand:
        return operand
    width = len(operand)
    total = int.from_bytes(existing[:width], "little") + int.from_bytes(operand, "little")
    return (total & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _bitwise(combine: Callable[[int, int], int]) -> Operation:
    def operation(existing: Existing, operand: bytes) -> bytes:
        if existing is None:
            return operand
        combined = combine(_as_int(_fit(existing, operand)), _as_int(operand))
        return combined.to_bytes(len(operand), "little")

    return operation


def _append_if_fits(existing: Existing, operand: bytes) -> bytes:
    existing = existing or b""
    return existing + operand if len(existing) + len(operand) <= VALUE_BYTES_MAX else existing


def _max(existing: Existing, operand: bytes) -> bytes:
    fitted = _fit(existing or b"", operand)
    return fitted if _as_int(fitted) > _as_int(operand) else operand


def _min(existing: Existing, operand: bytes) -> bytes:
    if existing is None:
        return operand
    fitted = _fit(existing, operand)
    return fitted if _as_int(fitted) < _as_int(operand) else operand


OPERATIONS: dict[int, Operation] = {
    ADD: _add,
    AND: _bitwise(int.__and__),
    OR: _bitwise(int.__or__),
    XOR: _bitwise(int.__xor__),
    APPEND_IF_FITS: _append_if_fits,
    MAX: _max,
    MIN: _min,
    BYTE_MIN: lambda existing, operand: operand if existing is None else min(existing, operand),
    BYTE_MAX: lambda existing, operand: operand if existing is None else max(existing, operand),
    COMPARE_AND_CLEAR: lambda existing, operand: None if existing == operand else existing,
}


STAMP_BYTES = 10
_OFFSET_BYTES = 4


def stamp(version: int, order: int) -> bytes:
    return version.to_bytes(8, "big") + order.to_bytes(2, "big")


def split(template: bytes) -> tuple[bytes, int]:
    """Return (bytes without the offset, offset)."""
    return template[:-_OFFSET_BYTES], int.from_bytes(template[-_OFFSET_BYTES:], "little", signed=True)


def has_place(template: bytes) -> bool:
    body, offset = split(template)
    return len(template) >= _OFFSET_BYTES and 0 <= offset <= len(body) - STAMP_BYTES


def place(body: bytes, offset: int, stamp_bytes: bytes) -> bytes:
    return body[:offset] + stamp_bytes + body[offset + STAMP_BYTES :]


def possible_keys(body: bytes, offset: int, version_min: int) -> tuple[bytes, bytes]:
    """Return the range [begin, end) of the keys that the commit may make of this template."""
    first = place(body, offset, stamp(version_min, 0))
    last = place(body, offset, b"\xff" * STAMP_BYTES)
    return first, last + b"\x00"


class Pending(msgspec.Struct, eq=False, array_like=True):
    """Atomic operations that wait for the stored value; `stamped` once one of them sets a versionstamp."""

    steps: list[tuple[int, bytes]]
    stamped: bool = False

    def push(self, code: int, operand: bytes) -> None:
        self.steps.append((code, operand))
        self.stamped = self.stamped or code == SET_VERSIONSTAMPED_VALUE

    @property
    def independent(self) -> bool:
        return self.steps[0][0] == SET_VERSIONSTAMPED_VALUE


class _Missing:
    """The type of MISSING: a key without an entry, so the stored value counts."""


MISSING = _Missing()
Entry = bytes | None | Pending
StampedKey = tuple[bytes, int, bytes]  # body, offset of the stamp, value


class WriteBuffer(msgspec.Struct, eq=False):
    """The buffered writes of one transaction, and the conflict ranges they make."""

    entries: dict[bytes, Entry] = {}
    cleared: RangeSet = msgspec.field(default_factory=RangeSet)
    unreadable: RangeSet = msgspec.field(default_factory=RangeSet)
    stamped_keys: list[StampedKey] = []
    conflicts: KeySet = msgspec.field(default_factory=KeySet)
    # Writes under next_write_no_write_conflict_range: no reader conflicts with them, but watches must fire.
    silent: KeySet = msgspec.field(default_factory=KeySet)
    has_writes: bool = False
    _keys: SortedList | None = None

    def writes_anything(self) -> bool:
        return self.has_writes or bool(self.conflicts)

    # -- writing ------------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes) -> None:
        entry = self.entries.get(key)
        if isinstance(entry, Pending) and entry.stamped:
            entry.push(_SET, value)  # the key stays unreadable until the commit
        else:
            self.put(key, value)

    def operate(self, code: int, key: bytes, operand: bytes) -> None:
        """Apply an atomic operation, any but set_versionstamped_key."""
        known = self.known(key)
        if code == SET_VERSIONSTAMPED_VALUE:
            if isinstance(known, Pending) and known.stamped:
                known.push(code, operand)
            else:
                self.put(key, Pending([(code, operand)], stamped=True))
        elif isinstance(known, Pending):
            known.push(code, operand)
        elif isinstance(known, _Missing):
            self.put(key, Pending([(code, operand)]))
        else:
            self.put(key, OPERATIONS[code](known, operand))

    def set_stamped_key(self, body: bytes, offset: int, value: bytes, version_min: int) -> None:
        self.has_writes = True
        self.unreadable.add(*possible_keys(body, offset, version_min))
        self.stamped_keys.append((body, offset, value))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.has_writes = True
        for key in list(self.keys_in(begin, end)):
            del self.entries[key]
            if self._keys is not None:
                self._keys.remove(key)
        self.stamped_keys = [s for s in self.stamped_keys if not begin <= s[0] < end]
        self.unreadable.remove(begin, end)
        self.cleared.add(begin, end)

    def put(self, key: bytes, entry: Entry) -> None:
        """Replace the entry of `key`; None clears the key."""
        self.has_writes = True
        if self._keys is not None and key not in self.entries:
            self._keys.add(key)
        self.entries[key] = entry

    # -- what reads see -----------------------------------------------------------------------------

    def known(self, key: bytes) -> Entry | _Missing:
        """Return the entry of `key`; MISSING if a read has to look up the stored value."""
        entry = self.entries.get(key, MISSING)
        if entry is MISSING and self.cleared.begins and key in self.cleared:
            return None
        return entry

    def keys_in(self, begin: bytes, end: bytes, reverse: bool = False) -> Iterator[bytes]:
        """Return the keys with entries in [begin, end), sorted; the first call sorts all entries."""
        if not self.entries:
            return iter(())
        if self._keys is None:
            self._keys = SortedList(self.entries)
        keys: Iterator[bytes] = self._keys.irange(begin, end, (True, False), reverse)
        return keys

    def dependent_parts(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        """Yield the parts of [begin, end) that a read has to look up in the database: only these can
        conflict. An entry inside a cleared range never depends on the database: operations there are computed
        at once.
        """
        for gap_begin, gap_end in self.cleared.gaps(begin, end):
            for key in self.keys_in(gap_begin, gap_end):
                entry = self.entries[key]
                if not isinstance(entry, Pending) or entry.independent:
                    if gap_begin < key:
                        yield gap_begin, key
                    gap_begin = key + b"\x00"
            if gap_begin < gap_end:
                yield gap_begin, gap_end


_SET = 0  # MutationRef::SetValue, as a step that follows a versionstamp


def resolve(entry: Pending, existing: bytes | None, stamp_bytes: bytes | None) -> bytes | None:
    """Return the value that `entry` makes of `existing`; `stamp_bytes` is None before the commit. Raises:
    FDBError 1036 for a versionstamped value that is read before its commit.
    """
    for code, operand in entry.steps:
        if code == _SET:
            existing = operand
        elif code == SET_VERSIONSTAMPED_VALUE:
            if stamp_bytes is None:
                raise FDBError(1036)
            existing = place(*split(operand), stamp_bytes)
        else:
            existing = OPERATIONS[code](existing, operand)
    return existing


def seen(entry: Entry | _Missing, existing: bytes | None) -> bytes | None:
    """Return the value that a read before the commit sees: `entry` over the stored value."""
    if isinstance(entry, Pending):
        return resolve(entry, existing, None)
    return existing if isinstance(entry, _Missing) else entry


class Flush(IntEnum):
    """The smallest of a group of commits counts for all of them."""

    NOW = 0
    """Before its call returns: it survives a power cut."""
    SOON = 1
    """Within `FLUSH_SOON_S`: a power cut may lose it. The death of its process does not."""
    NEVER = 2
    """Whenever the system writes it, or a later commit is flushed."""


FLUSH_SOON_S = 0.1


class CommitRequest(msgspec.Struct, eq=False):
    """The reads and writes of one transaction, and the outcome of its commit."""

    buffer: WriteBuffer
    reads: KeySet
    read_version: int | None
    size_bytes: int
    is_bookkeeping: bool = False  # may use the reserve (environment.py)
    flush: Flush = Flush.NOW
    turn: Lock | None = None
    version: int | None = None
    order: int = 0
    error: BaseException | None = None
    deadline_s: float = inf
    """When its transaction times out, by the monotonic clock; `late` is the error for that."""
    late: FDBError | None = None
    is_left: bool = False
    """True once no thread waits for it: it cannot lead."""
    body: Callable[[Any, int], Any] | None = None
    """Of a direct transaction (direct.py): it gets the LMDB transaction, and its order there."""

    @property
    def finished(self) -> bool:
        return self.version is not None or self.error is not None

    def wake(self) -> None:
        """Let the waiting thread go on. It waits only once, so a second call has no effect."""
        if self.turn is not None:
            with suppress(RuntimeError):  # released already
                self.turn.release()


# Read version, size, reads; conflicts, silent writes, entries, cleared ranges and stamped keys of the buffer;
# then is_bookkeeping and flush.
_Published = tuple[
    int | None, int, KeySet, KeySet, KeySet, dict[bytes, Entry], RangeSet, list[StampedKey], bool, Flush
]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Published]).decode


def encode(requests: Sequence[CommitRequest]) -> bytes:
    return _encode([_published(request, request.buffer) for request in requests])


def decode(body: bytes) -> list[CommitRequest]:
    return [_request(*published) for published in _decode(body)]


def _published(one: CommitRequest, of: WriteBuffer) -> _Published:
    made = (one.read_version, one.size_bytes, one.reads, of.conflicts, of.silent, of.entries, of.cleared)
    return (*made, of.stamped_keys, one.is_bookkeeping, one.flush)


def _request(
    read_version: int | None,
    size_bytes: int,
    reads: KeySet,
    conflicts: KeySet,
    silent: KeySet,
    entries: dict[bytes, Entry],
    cleared: RangeSet,
    stamped_keys: list[StampedKey],
    is_bookkeeping: bool,
    flush: Flush,
) -> CommitRequest:
    buffer = WriteBuffer(entries, cleared, RangeSet(), stamped_keys, conflicts, silent)
    return CommitRequest(buffer, reads, read_version, size_bytes, is_bookkeeping, flush)
