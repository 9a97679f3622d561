"""What the reads of a transaction see: a snapshot of the database through its own uncommitted writes.

A range is read in batches. A batch conflicts with writes to the part of the range that it has read: up to its
last key if it stopped early, otherwise the whole rest of the range. It also conflicts with writes to keys
that its selectors passed over.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import lmdb
import msgspec

from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import layout
from fdbqueue.embedded.layout import KeyAndValue
from fdbqueue.embedded.surface import StreamingMode, key_bytes
from fdbqueue.embedded.writes import MISSING, KeyRange, WriteBuffer, seen


class Snapshot:
    """The database at one version. It ends with its last reference. Past the age of a transaction it cannot
    be read, and the next begin or commit of this process ends it.
    """

    __slots__ = (
        "__weakref__",
        "_has_ended",
        "_live",
        "_reads",
        "_serial",
        "_to_abort",
        "expires_s",
        "txn",
        "version",
    )

    def __init__(self, txn: Any, expires_s: float, live: "dict[int, weakref.ref[Snapshot]]", serial: int):
        self.txn = txn
        self.version: int = txn.id()
        self.expires_s = expires_s
        self._live = live
        self._serial = serial
        # Lists: append and pop are atomic, and a lock would cost each read more.
        self._reads: list[None] = []
        self._to_abort: list[None] = [None]
        self._has_ended = False
        live[serial] = weakref.ref(self)

    def __del__(self) -> None:
        self._live.pop(self._serial, None)

    def get(self, key: bytes) -> bytes | None:
        self._reads.append(None)
        try:
            if self._has_ended:
                raise FDBError(1007)
            return layout.get(self.txn, key)
        except lmdb.Error:
            raise FDBError(1007) from None
        finally:
            self._reads.pop()
            if self._has_ended:
                self._abort_unread()

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[layout.KeyAndValue]:
        self._reads.append(None)
        try:
            if self._has_ended:
                raise FDBError(1007)
            yield from layout.scan(self.txn, begin, end, reverse)
        except lmdb.Error:
            raise FDBError(1007) from None
        finally:
            self._reads.pop()
            if self._has_ended:
                self._abort_unread()

    def read(self, begin: bytes, end: bytes, query: "RangeQuery") -> "tuple[list[KeyValue], bool]":
        self._reads.append(None)
        try:
            if self._has_ended:
                raise FDBError(1007)
            return collect(layout.scan(self.txn, begin, end, query.reverse), query)
        except lmdb.Error:
            raise FDBError(1007) from None
        finally:
            self._reads.pop()
            if self._has_ended:
                self._abort_unread()

    def end(self) -> None:
        """End the LMDB transaction, so that LMDB may reuse the pages of this version. The last of the reads
        under way in other threads ends it: LMDB reads without the lock of the interpreter. If a read loses
        its transaction, a segmentation fault kills the process.
        """
        self._has_ended = True
        self._abort_unread()

    def _abort_unread(self) -> None:
        """Abort the LMDB transaction, unless a read is under way. A read that begins later sees the end."""
        if self._reads:
            return
        try:
            self._to_abort.pop()
        except IndexError:  # another thread was first
            return
        self.txn.abort()


class KeySelector:
    """A key named by its position relative to another key: see "Key selectors" in FoundationDB's guide."""

    __slots__ = ("key", "offset", "or_equal")

    def __init__(self, key: Any, or_equal: bool, offset: int) -> None:
        self.key = key
        self.or_equal = or_equal
        self.offset = offset

    def __add__(self, offset: int) -> "KeySelector":
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> "KeySelector":
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    @classmethod
    def last_less_than(cls, key: Any) -> "KeySelector":
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: Any) -> "KeySelector":
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: Any) -> "KeySelector":
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: Any) -> "KeySelector":
        return cls(key, False, 1)

    def __repr__(self) -> str:
        return f"KeySelector({self.key!r}, {self.or_equal!r}, {self.offset!r})"


class Anchor(msgspec.Struct, frozen=True):
    """A selector without or_equal: the `offset`-th key at or after `key`; offset 0 is the key before it."""

    key: bytes
    offset: int
    given: bytes  # the key that the caller named, which must be in the legal range


def anchor_of(key_or_selector: Any) -> Anchor:
    """Return the anchor of one end of a range; a plain key is the first key at or after it."""
    if type(key_or_selector) is bytes:
        return Anchor(key_or_selector, 1, key_or_selector)
    if isinstance(key_or_selector, KeySelector):
        given = key_bytes(key_or_selector.key)
        key = given + b"\x00" if key_or_selector.or_equal else given
        return Anchor(key, key_or_selector.offset, given)
    return first_from(key_bytes(key_or_selector))


def first_from(key: bytes) -> Anchor:
    return Anchor(key, 1, key)


class View(msgspec.Struct, frozen=True):
    """A snapshot, seen through the uncommitted writes of the transaction if `buffer` is not None."""

    snapshot: Snapshot
    buffer: WriteBuffer | None
    end: bytes  # the first key that is out of reach: \xff, or \xff\xff with system keys

    def scan(self, begin: bytes, end: bytes, reverse: bool = False) -> Iterator[KeyAndValue]:
        """Return the records of [begin, end) in order. Raises: FDBError 1036 at an unreadable key."""
        if begin >= end:
            return iter(())
        if self.buffer is None:
            return self.snapshot.scan(begin, end, reverse)
        return self._overlaid(self.buffer, begin, end, reverse)

    def _overlaid(
        self, buffer: WriteBuffer, begin: bytes, end: bytes, reverse: bool
    ) -> Iterator[KeyAndValue]:
        fence = _fence(buffer, begin, end, reverse)
        stored = self._not_cleared(buffer, begin, end, reverse)
        for key, existing in _merged(buffer, stored, begin, end, reverse):
            if fence is not None and (key < fence if reverse else key >= fence):
                raise FDBError(1036)
            value = seen(buffer.entries.get(key, MISSING), existing)
            if value is not None:
                yield key, value
        if fence is not None:
            raise FDBError(1036)

    def _not_cleared(
        self, buffer: WriteBuffer, begin: bytes, end: bytes, reverse: bool
    ) -> Iterator[KeyAndValue]:
        # Cleared ranges are skipped, not scanned: one may hold a whole queue.
        gaps = list(buffer.cleared.gaps(begin, end))
        for gap_begin, gap_end in reversed(gaps) if reverse else gaps:
            yield from self.snapshot.scan(gap_begin, gap_end, reverse)

    def locate(self, anchor: Anchor) -> tuple[bytes, bool]:
        """Return (key, False) for the key that `anchor` names. Before the first key it is (b"", True), past
        the last one (`end`, True).
        """
        if anchor.offset > 0:
            for number, (key, _) in enumerate(self.scan(anchor.key, self.end), start=1):
                if number == anchor.offset:
                    return key, False
            return self.end, True
        for number, (key, _) in enumerate(self.scan(b"", min(anchor.key, self.end), reverse=True)):
            if number == -anchor.offset:
                return key, False
        return b"", True


def _fence(buffer: WriteBuffer, begin: bytes, end: bytes, reverse: bool) -> bytes | None:
    """Return the edge of the first unreadable range in reading direction; None if there is none."""
    parts = list(buffer.unreadable.within(begin, end))
    if not parts:
        return None
    return parts[-1][1] if reverse else parts[0][0]


def _merged(
    buffer: WriteBuffer, stored: Iterator[KeyAndValue], begin: bytes, end: bytes, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield each key that is stored or has an entry, once, in order, with its stored value."""
    own = buffer.keys_in(begin, end, reverse)
    key = next(own, None)
    for stored_key, value in stored:
        while key is not None and (key > stored_key if reverse else key < stored_key):
            yield key, None
            key = next(own, None)
        if key == stored_key:
            key = next(own, None)
        yield stored_key, value
    while key is not None:
        yield key, None
        key = next(own, None)


_BYTES_WANTED = {
    StreamingMode.want_all: 80_000,
    StreamingMode.exact: None,
    StreamingMode.small: 256,
    StreamingMode.medium: 1_000,
    StreamingMode.large: 4_096,
    StreamingMode.serial: 80_000,
}
# An iterated range gets larger and larger batches.
_ITERATOR_BYTES = (4_096, 6_144, 9_216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000)


class KeyValue(msgspec.Struct, eq=False):
    """A record; unpacks into key and value."""

    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"

    def __iter__(self) -> Iterator[bytes]:
        yield self.key
        yield self.value


class RangeQuery(msgspec.Struct, frozen=True):
    begin: Anchor
    end: Anchor
    limit: int  # records; 0: no bound
    bytes_wanted: int | None  # the batch ends with the record that reaches it; None: no bound
    reverse: bool


Found = tuple[bytes, bool]  # the key that an anchor names, and whether the anchor ran off an end


class Batch(msgspec.Struct, frozen=True):
    records: list[KeyValue]
    more: bool
    begin: Found
    end: Found


NOTHING = Batch([], False, (b"", False), (b"", False))


def bytes_wanted(mode: int, iteration: int, limit: int) -> int | None:
    """The bytes that end a batch; None for no bound. Raises: FDBError 2210 for `exact` without a limit."""
    if mode == StreamingMode.iterator:
        return _ITERATOR_BYTES[min(iteration, len(_ITERATOR_BYTES)) - 1]
    if mode == StreamingMode.exact and limit <= 0:
        raise FDBError(2210)
    return _BYTES_WANTED.get(mode, _BYTES_WANTED[StreamingMode.serial])


def read_batch(view: View, query: RangeQuery) -> Batch:
    """Return the first records of a range, from its end when `reverse`; NOTHING of an inverted range."""
    begin, end = query.begin, query.end
    if begin.offset >= end.offset and begin.key >= end.key:
        return NOTHING
    first = (begin.key, False) if begin.offset == 1 else view.locate(begin)
    last = (end.key, False) if end.offset == 1 else view.locate(end)
    if view.buffer is None:  # no generator between the cursor and the list: most reads have one row
        records, more = view.snapshot.read(first[0], last[0], query)
    else:
        records, more = collect(view.scan(first[0], last[0], query.reverse), query)
    return Batch(records, more, first, last)


def collect(found: Iterator[KeyAndValue], query: RangeQuery) -> tuple[list[KeyValue], bool]:
    """Return the first records, as many as `query` wants, and whether there may be more."""
    limit, byte_target = query.limit, query.bytes_wanted
    records: list[KeyValue] = []
    size_bytes = 0
    for key, value in found:
        records.append(KeyValue(key, value))
        if len(records) == limit:
            return records, True
        if byte_target is not None:
            size_bytes += len(key) + len(value)
            if size_bytes >= byte_target:
                return records, True
    return records, False


def conflict_range(query: RangeQuery, batch: Batch) -> KeyRange:
    """Return the range in which a write could change the answer `batch`. A batch that stopped early depends
    on nothing beyond its last record. It still depends on all keys that its selectors passed over.
    """
    begin, end, reverse = query.begin, query.end, query.reverse
    low, high = min(begin.key, end.key), max(begin.key, end.key)
    stopped_early = batch.more and begin.key < end.key
    # 1. A batch that stopped early did not reach its far end, unless that end's selector walked inwards.
    if stopped_early and not reverse and end.offset > 0:
        high = begin.key
    if stopped_early and reverse and begin.offset <= 1:
        low = end.key
    # 2. A selector that ran off an end of the database passed over all keys on the way.
    begin_key, begin_ran_off = batch.begin
    end_key, end_ran_off = batch.end
    if begin_ran_off and begin.offset <= 0:
        low = begin_key
    if end_ran_off and end.offset > 0:
        high = end_key
    if not batch.records:
        return low, high
    # 3. The records themselves.
    smallest, largest = batch.records[0].key, batch.records[-1].key
    if reverse:
        smallest, largest = largest, smallest
    if reverse or begin.offset <= 0:
        low = min(low, smallest)
    if high <= largest and (not reverse or end.offset > 0):
        high = largest + b"\x00"
    return low, high
