"""Key selectors, and range reads through the uncommitted writes of the transaction."""

from collections.abc import Iterator
from typing import Any

import msgspec

from fdbqueue.embedded.layout import KeyAndValue
from fdbqueue.embedded.snapshot import Snapshot
from fdbqueue.embedded.values import key_bytes
from fdbqueue.embedded.writes import Pending, WriteBuffer, resolve
from fdbqueue.fdberror import FDBError


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
        """Return the records of [begin, end) in order.

        Raises: FDBError 1036 at an unreadable key.
        """
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
            value = _seen(buffer, key, existing)
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
        """Return (key, False) for the key that `anchor` names.

        Before the first key it is (b"", True), past the last one (`end`, True).
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


def _seen(buffer: WriteBuffer, key: bytes, existing: bytes | None) -> bytes | None:
    entry = buffer.entries.get(key, _STORED)
    if entry is _STORED:
        return existing
    if isinstance(entry, Pending):
        return resolve(entry, existing, None)
    return entry  # type: ignore[return-value]


_STORED = object()
