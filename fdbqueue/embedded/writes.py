"""What a transaction has written and not yet committed, as its own reads must see it.

A key's entry is what is known of it:

    bytes       its value: set, or an atomic operation on a known value
    None        it is absent: cleared
    Pending     operations on a value that only the database knows, or a versionstamp that nobody knows

Cleared ranges lie beside the entries; an entry inside one is newer than it. Entries of bytes and None,
and cleared ranges, are *independent* of the database: reading them conflicts with nobody. Source of the
rules: ReadYourWrites and WriteMap of FoundationDB 7.3, and measurements on its server.
"""

from collections.abc import Iterator

from sortedcontainers import SortedList

from fdbqueue.embedded import atomic
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.ranges import KeyRange, RangeSet
from fdbqueue.embedded.versionstamp import place, possible_keys, split
from fdbqueue.fdberror import FDBError


class Pending:
    """Operations waiting for a value; `stamped` once one of them is a versionstamped set."""

    __slots__ = ("stamped", "steps")

    def __init__(self, code: int, operand: bytes) -> None:
        self.steps = [(code, operand)]
        self.stamped = code == atomic.SET_VERSIONSTAMPED_VALUE

    @classmethod
    def of(cls, steps: list[tuple[int, bytes]]) -> "Pending":
        """With all of its operations at once."""
        pending = cls(*steps[0])
        for code, operand in steps[1:]:
            pending.push(code, operand)
        return pending

    def push(self, code: int, operand: bytes) -> None:
        self.steps.append((code, operand))
        self.stamped = self.stamped or code == atomic.SET_VERSIONSTAMPED_VALUE

    @property
    def independent(self) -> bool:
        return self.steps[0][0] == atomic.SET_VERSIONSTAMPED_VALUE


class _Missing:
    """No entry: the database's own value shows through."""


MISSING = _Missing()
Entry = bytes | None | Pending
StampedKey = tuple[bytes, int, bytes]  # body, offset of the stamp, value


class WriteBuffer:
    """The buffered writes of one transaction, and the conflict set they make."""

    __slots__ = ("_keys", "cleared", "conflicts", "entries", "silent", "stamped_keys", "unreadable")

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.cleared = RangeSet()
        self.unreadable = RangeSet()
        self.stamped_keys: list[StampedKey] = []
        self.conflicts = KeySet()
        # Written under next_write_no_write_conflict_range: no reader conflicts, yet a watch must fire.
        self.silent = KeySet()
        self._keys: SortedList | None = None

    def __bool__(self) -> bool:
        return bool(self.entries or self.cleared or self.stamped_keys or self.unreadable)

    def writes_anything(self) -> bool:
        return bool(self.entries or self.cleared or self.stamped_keys or self.conflicts)

    # -- writing ------------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes) -> None:
        entry = self.entries.get(key)
        if isinstance(entry, Pending) and entry.stamped:
            entry.push(_SET, value)  # unreadable it stays
        else:
            self._put(key, value)

    def operate(self, code: int, key: bytes, operand: bytes) -> None:
        """An atomic operation other than a versionstamped key."""
        known = self.known(key)
        if code == atomic.SET_VERSIONSTAMPED_VALUE:
            if isinstance(known, Pending) and known.stamped:
                known.push(code, operand)
            else:
                self._put(key, Pending(code, operand))
        elif isinstance(known, Pending):
            known.push(code, operand)
        elif isinstance(known, _Missing):
            self._put(key, Pending(code, operand))
        else:
            self._put(key, atomic.OPERATIONS[code](known, operand))

    def set_stamped_key(self, body: bytes, offset: int, value: bytes, version_min: int) -> None:
        self.unreadable.add(*possible_keys(body, offset, version_min))
        self.stamped_keys.append((body, offset, value))

    def clear(self, key: bytes) -> None:
        self._put(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        for key in list(self.keys_in(begin, end)):
            del self.entries[key]
            if self._keys is not None:
                self._keys.remove(key)
        self.stamped_keys = [s for s in self.stamped_keys if not begin <= s[0] < end]
        self.unreadable.remove(begin, end)
        self.cleared.add(begin, end)

    def _put(self, key: bytes, entry: Entry) -> None:
        if self._keys is not None and key not in self.entries:
            self._keys.add(key)
        self.entries[key] = entry

    # -- what reads see -----------------------------------------------------------------------------

    def known(self, key: bytes) -> Entry | _Missing:
        """The entry that a read of `key` meets; MISSING when the database decides."""
        entry = self.entries.get(key, MISSING)
        if entry is MISSING and key in self.cleared:
            return None
        return entry

    def keys_in(self, begin: bytes, end: bytes, reverse: bool = False) -> Iterator[bytes]:
        """The keys with entries in [begin, end), sorted: only range reads pay for the order."""
        if not self.entries:
            return iter(())
        if self._keys is None:
            self._keys = SortedList(self.entries)
        keys: Iterator[bytes] = self._keys.irange(begin, end, (True, False), reverse)
        return keys

    def dependent_parts(self, begin: bytes, end: bytes) -> Iterator[KeyRange]:
        """The parts of [begin, end) whose reading depends on the database: only these can conflict.

        An entry inside a cleared range never does: an operation there was computed at once.
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


_SET = 0  # MutationRef::SetValue, when it must wait behind a versionstamp


def resolve(entry: Pending, existing: bytes | None, stamp_bytes: bytes | None) -> bytes | None:
    """The value that `entry` makes of `existing`; `stamp_bytes` is known only while committing.

    Raises FDBError 1036 for a versionstamped value that is read before its commit.
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
