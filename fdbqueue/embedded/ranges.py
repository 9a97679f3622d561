"""Sets of keys made of half-open ranges: what a transaction cleared, read, or may not read."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

KeyRange = tuple[bytes, bytes]


class RangeSet:
    """Disjoint, sorted, half-open ranges; neighbours that touch are one range."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __iter__(self) -> Iterator[KeyRange]:
        return zip(self._begins, self._ends, strict=True)

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._begins, key) - 1
        return at >= 0 and key < self._ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        kept: list[KeyRange] = []
        if first < last:
            if self._begins[first] < begin:
                kept.append((self._begins[first], begin))
            if end < self._ends[last - 1]:
                kept.append((end, self._ends[last - 1]))
        self._begins[first:last] = [b for b, _ in kept]
        self._ends[first:last] = [e for _, e in kept]

    def within(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        """The parts of [begin, end) that are in the set, in order."""
        at = bisect_right(self._ends, begin)
        while at < len(self._begins) and self._begins[at] < end:
            yield max(begin, self._begins[at]), min(end, self._ends[at])
            at += 1

    def gaps(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        """The parts of [begin, end) that are not in the set, in order."""
        for inner_begin, inner_end in self.within(begin, end):
            if begin < inner_begin:
                yield begin, inner_begin
            begin = inner_end
        if begin < end:
            yield begin, end
