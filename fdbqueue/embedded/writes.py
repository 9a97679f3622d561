"""The uncommitted writes of a transaction, as its own reads must see them.

Each written key has an entry:

    bytes       its value: it was set, or an atomic operation was applied to a known value
    None        it was cleared
    Pending     atomic operations on a stored value that is not known yet, or with the commit's versionstamp

Cleared ranges lie beside the entries; an entry inside a cleared range is newer than the clear. Entries of
bytes and None, and cleared ranges, are *independent* of the database: reading them conflicts with no write.
Source of the rules: ReadYourWrites and WriteMap of FoundationDB 7.3, and measurements on its server.
"""

from collections.abc import Iterator

import msgspec
from sortedcontainers import SortedList

from fdbqueue.embedded import atomic
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.ranges import KeyRange, RangeSet
from fdbqueue.embedded.versionstamp import place, possible_keys, split
from fdbqueue.fdberror import FDBError


class Pending(msgspec.Struct, eq=False):
    """Atomic operations that wait for the stored value; `stamped` once one of them sets a versionstamp."""

    steps: list[tuple[int, bytes]]
    stamped: bool = False

    @classmethod
    def of(cls, steps: list[tuple[int, bytes]]) -> "Pending":
        return cls(steps, any(code == atomic.SET_VERSIONSTAMPED_VALUE for code, _ in steps))

    def push(self, code: int, operand: bytes) -> None:
        self.steps.append((code, operand))
        self.stamped = self.stamped or code == atomic.SET_VERSIONSTAMPED_VALUE

    @property
    def independent(self) -> bool:
        return self.steps[0][0] == atomic.SET_VERSIONSTAMPED_VALUE


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
        if code == atomic.SET_VERSIONSTAMPED_VALUE:
            if isinstance(known, Pending) and known.stamped:
                known.push(code, operand)
            else:
                self.put(key, Pending([(code, operand)], stamped=True))
        elif isinstance(known, Pending):
            known.push(code, operand)
        elif isinstance(known, _Missing):
            self.put(key, Pending([(code, operand)]))
        else:
            self.put(key, atomic.OPERATIONS[code](known, operand))

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
        conflict.

        An entry inside a cleared range never depends on the database: operations there are computed at once.
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
    """Return the value that `entry` makes of `existing`; `stamp_bytes` is None before the commit.

    Raises: FDBError 1036 for a versionstamped value that is read before its commit.
    """
    for code, operand in entry.steps:
        if code == _SET:
            existing = operand
        elif code == atomic.SET_VERSIONSTAMPED_VALUE:
            existing = _stamped_value(operand, stamp_bytes)
        else:
            existing = atomic.OPERATIONS[code](existing, operand)
    return existing


def _stamped_value(template: bytes, stamp_bytes: bytes | None) -> bytes:
    if stamp_bytes is None:
        raise FDBError(1036)
    return place(*split(template), stamp_bytes)
