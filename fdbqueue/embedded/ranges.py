"""Sets of keys made of half-open ranges: the ranges that a transaction has cleared, or must not read."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

KeyRange = tuple[bytes, bytes]


class RangeSet(msgspec.Struct, eq=False):
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
        """Yield the parts of [begin, end) that are in the set, in order."""
        at = bisect_right(self.ends, begin)
        while at < len(self.begins) and self.begins[at] < end:
            yield max(begin, self.begins[at]), min(end, self.ends[at])
            at += 1

    def gaps(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        """Yield the parts of [begin, end) that are not in the set, in order."""
        for inner_begin, inner_end in self.within(begin, end):
            if begin < inner_begin:
                yield begin, inner_begin
            begin = inner_end
        if begin < end:
            yield begin, end
