"""Range reads in batches, and what each batch conflicts with.

A batch conflicts with writes to what it has actually read: up to its last key when it stopped early, the
whole rest of the range when it did not, and the keys that its selectors passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded.futures import Future
from fdbqueue.embedded.options import StreamingMode
from fdbqueue.embedded.ranges import KeyRange
from fdbqueue.embedded.selectors import Anchor, KeySelector, View
from fdbqueue.fdberror import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.reading import ReadTransaction

_BYTES_WANTED = {
    StreamingMode.want_all: 80_000,
    StreamingMode.exact: None,
    StreamingMode.small: 256,
    StreamingMode.medium: 1_000,
    StreamingMode.large: 4_096,
    StreamingMode.serial: 80_000,
}
# A range that is iterated gets larger batches the longer it goes on.
_ITERATOR_BYTES = (4_096, 6_144, 9_216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000)


class KeyValue:
    """A record; unpacks into key and value."""

    __slots__ = ("key", "value")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"

    def __iter__(self) -> Iterator[bytes]:
        yield self.key
        yield self.value


@dataclass(frozen=True, slots=True)
class Batch:
    records: list[KeyValue]
    more: bool
    read: KeyRange | None  # what it conflicts with


_NOTHING = Batch([], False, None)


def bytes_wanted(mode: int, iteration: int, limit: int) -> int | None:
    """How many bytes one batch should carry; None: no bound. Raises FDBError 2210 (exact, no limit)."""
    if mode == StreamingMode.iterator:
        return _ITERATOR_BYTES[min(iteration, len(_ITERATOR_BYTES)) - 1]
    if mode == StreamingMode.exact and limit <= 0:
        raise FDBError(2210)
    return _BYTES_WANTED.get(mode, _BYTES_WANTED[StreamingMode.serial])


def read_batch(
    view: View, begin: Anchor, end: Anchor, limit: int, byte_target: int | None, reverse: bool
) -> Batch:
    """The first records of the range between two anchors, from its end when `reverse`."""
    if begin.offset >= end.offset and begin.key >= end.key:
        return _NOTHING
    first, off_begin = (begin.key, False) if begin.offset == 1 else view.locate(begin)
    last, off_end = (end.key, False) if end.offset == 1 else view.locate(end)
    records, more = _collect(view.scan(first, last, reverse), limit, byte_target)
    read = _conflict_range(begin, end, records, more, off_begin, off_end, view.end, reverse)
    return Batch(records, more, read)


def _collect(
    found: Iterator[tuple[bytes, bytes]], limit: int, byte_target: int | None
) -> tuple[list[KeyValue], bool]:
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


def _conflict_range(
    begin: Anchor,
    end: Anchor,
    records: list[KeyValue],
    more: bool,
    off_begin: bool,
    off_end: bool,
    view_end: bytes,
    reverse: bool,
) -> KeyRange:
    """What a change of could change the answer.

    A read that stopped early depends on nothing beyond its last record, but still on all that its
    selectors passed over to find where to begin and where to end.
    """
    low, high = min(begin.key, end.key), max(begin.key, end.key)
    stopped_early = more and begin.key < end.key
    if stopped_early and not reverse and end.offset > 0:
        high = begin.key
    if stopped_early and reverse and begin.offset <= 1:
        low = end.key
    if off_begin and begin.offset <= 0:
        low = b""
    if off_end and end.offset > 0:
        high = view_end
    if not records:
        return low, high
    smallest, largest = (records[-1], records[0]) if reverse else (records[0], records[-1])
    if reverse or begin.offset <= 0:
        low = min(low, smallest.key)
    if high <= largest.key and (not reverse or end.offset > 0):
        high = largest.key + b"\x00"
    return low, high


class FDBRange:
    """The reply to a range read: the first batch is read at once, the others as it is iterated."""

    def __init__(
        self,
        tr: "ReadTransaction",
        begin: KeySelector,
        end: KeySelector,
        limit: int,
        reverse: bool,
        mode: int,
    ) -> None:
        self._tr = tr
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = bool(reverse)
        self._mode = mode
        self._first = tr._get_range(begin, end, limit, mode, 1, self._reverse)

    def to_list(self) -> list[KeyValue]:
        """All records. Raises FDBError."""
        if self._mode != StreamingMode.iterator:
            return list(self._iterate(self._mode))
        return list(self._iterate(StreamingMode.exact if self._limit > 0 else StreamingMode.want_all))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._iterate(self._mode)

    def _iterate(self, mode: int) -> Iterator[KeyValue]:
        begin, end, limit = self._begin, self._end, self._limit
        future, iteration = self._first, 1
        while True:
            records, count, more = future.wait()
            yield from records
            if not more or count == 0 or count == limit:
                return
            limit = limit - count if limit > 0 else limit
            last = records[-1].key
            if self._reverse:
                end = KeySelector.first_greater_or_equal(last)
            else:
                begin = KeySelector.first_greater_than(last)
            iteration += 1
            future = self._tr._get_range(begin, end, limit, mode, iteration, self._reverse)


RangeReply = tuple[list[KeyValue], int, bool]


def reply_future(batch: Batch) -> Future:
    return Future((batch.records, len(batch.records), batch.more))


def selector_of(key_or_selector: Any) -> KeySelector:
    if isinstance(key_or_selector, KeySelector):
        return key_or_selector
    return KeySelector.first_greater_or_equal(key_or_selector)
