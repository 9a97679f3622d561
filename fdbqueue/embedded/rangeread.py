"""Range reads in batches, and the conflict range of each batch.

A batch conflicts with writes to the part of the range that it has read: up to its last key if it stopped
early, otherwise the whole rest of the range. It also conflicts with writes to keys that its selectors passed
over.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from fdbqueue.embedded.options import StreamingMode
from fdbqueue.embedded.ranges import KeyRange
from fdbqueue.embedded.selectors import Anchor, View, first_from
from fdbqueue.fdberror import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.reading import ReadTransaction
    from fdbqueue.embedded.steps import Steps

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
    """The question for one batch of a range read."""

    begin: Anchor
    end: Anchor
    limit: int  # records; 0: no bound
    bytes_wanted: int | None  # the batch ends with the record that reaches it; None: no bound
    reverse: bool


Found = tuple[bytes, bool]  # the key that an anchor names, and whether the anchor ran off an end


class Batch(msgspec.Struct, frozen=True):
    """The answer to a RangeQuery."""

    records: list[KeyValue]
    more: bool
    begin: Found
    end: Found


NOTHING = Batch([], False, (b"", False), (b"", False))


def bytes_wanted(mode: int, iteration: int, limit: int) -> int | None:
    """Return the bytes that end a batch; None for no bound.

    Raises: FDBError 2210 for mode `exact` without a limit.
    """
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
    found = view.scan(first[0], last[0], query.reverse)
    records, more = _collect(found, query.limit, query.bytes_wanted)
    return Batch(records, more, first, last)


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


def conflict_range(query: RangeQuery, batch: Batch) -> KeyRange:
    """Return the range in which a write could change the answer `batch`.

    A batch that stopped early depends on nothing beyond its last record. It still depends on all keys that
    its selectors passed over.
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


class FDBRange:
    """The reply to a range read. The first batch is read at once, each later one when iteration needs it."""

    def __init__(
        self, tr: "ReadTransaction", begin: Anchor, end: Anchor, limit: int, reverse: bool, mode: int
    ) -> None:
        self._steps: Steps = tr._tr
        self._is_snapshot = tr._is_snapshot
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = bool(reverse)
        self._mode = mode
        self._first = self._read(begin, end, limit, mode, 1)

    def to_list(self) -> list[KeyValue]:
        """Return all records.

        Raises: FDBError.
        """
        if self._mode != StreamingMode.iterator:
            return list(self._iterate(self._mode))
        return list(self._iterate(StreamingMode.exact if self._limit > 0 else StreamingMode.want_all))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._iterate(self._mode)

    def _iterate(self, mode: int) -> Iterator[KeyValue]:
        begin, end, limit = self._begin, self._end, self._limit
        batch, iteration = self._first, 1
        while True:
            if isinstance(batch, FDBError):
                raise batch
            yield from batch.records
            count = len(batch.records)
            if not batch.more or count == 0 or count == limit:
                return
            limit = limit - count if limit > 0 else limit
            last = batch.records[-1].key
            if self._reverse:
                end = first_from(last)
            else:
                begin = first_from(last + b"\x00")
            iteration += 1
            batch = self._read(begin, end, limit, mode, iteration)

    def _read(self, begin: Anchor, end: Anchor, limit: int, mode: int, iteration: int) -> Batch | FDBError:
        """Return one batch, or the error of a failed read, which only iteration raises."""
        try:
            wanted = bytes_wanted(mode, iteration, limit)
            query = RangeQuery(begin, end, limit, wanted, self._reverse)
            return self._steps.step_read_range(query, self._is_snapshot)
        except FDBError as error:
            self._steps._read_failed(error)
            return error
