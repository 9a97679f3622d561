"""Conflict sets: the keys and ranges that a transaction has read or a commit has written."""

from bisect import bisect_left

import msgspec

from fdbqueue.embedded.ranges import KeyRange


class KeySet(msgspec.Struct, eq=False):
    """Single keys and ranges, as one transaction reads or one commit writes them.

    Most are single keys, so these are a hash set. They are sorted when a range is first compared with them.
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
        """True if any key lies in both sets."""
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
