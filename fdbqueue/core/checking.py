"""Checks: generators that ask for the keys that a row names, and tell the contradictions between them.

    def heartbeat(self, row: Row, rest: list[Any]) -> Check:
        session = self._keys.session(rest[0])
        if not (yield [session]).has(session):
            yield self.found(Flaw.STRAY, row, "A heartbeat belongs to no session.")

A check first yields a list of keys and ranges, and is sent their values as `Seen`. Then it yields each
`Suspect`. A check that needs no other key begins with a Suspect.
"""

import struct
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.seam import EXACT, Range, ReadTransaction, Transaction, Value

T = TypeVar("T")

FOREIGN = "Another program has written it, or a newer release: look there. Nothing here changes it."


class Flaw(StrEnum):
    """A kind of contradiction between stored keys."""

    RECORD = "unreadable record"
    STATE = "no key of its state"
    COPY = "different copies"
    STRAY = "key without owner"
    TIMER = "timer"
    PAYLOAD = "payload"
    KEY_STATE = "state of a task key"
    KEY_COUNTER = "counter of a task key"
    COUNTER = "counter"
    LINE = "waiting line"
    SET_ASIDE = "value set aside"
    SESSION = "session"
    DEFINITION = "definition"
    ORPHAN = "dropped queue"
    VALUE = "damaged value"
    UNKNOWN = "unknown key"


class Row(NamedTuple):
    key: bytes
    value: bytes


class Under(NamedTuple):
    """A range of keys, read up to `limit` rows; 0 is limits.VERIFIED_ROWS_MAX."""

    start: bytes
    stop: bytes
    limit: int = 0


Ask = bytes | Under


def under(keys: slice, limit: int = 0) -> Under:
    return Under(keys.start, keys.stop, limit)


def below(prefix: bytes) -> Under:
    """All keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return Under(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff")


class Seen:
    """The values of keys and ranges at the read version of a slice."""

    def __init__(self, values: Mapping[bytes, bytes | None], ranges: Mapping[Under, Sequence[Row]]) -> None:
        self._values = values
        self._ranges = ranges

    def value(self, key: bytes) -> bytes | None:
        return self._values[key]

    def has(self, key: bytes) -> bool:
        return self.value(key) is not None

    def rows(self, keys: Under) -> Sequence[Row]:
        return self._ranges[keys]

    def size_bytes(self, keys: Under) -> int:
        """The bytes of all values of a range."""
        return sum(len(row.value) for row in self.rows(keys))


class Excuse(NamedTuple):
    """Keys that may explain a contradiction: it is none if `explains` is true for their rows."""

    under: Under
    explains: Callable[[Sequence[Row]], bool]


Mend = Callable[[Transaction], object]
Mending = Mend | Mapping[bytes, bytes] | None
"""A function, or the keys that the mending sets. By default, it clears the row."""


@dataclass(frozen=True)
class Suspect:
    """A contradiction as a check sees it."""

    flaw: Flaw
    key: bytes
    text: str
    cure: str
    mend: Mend | None = None
    excuses: Sequence[Excuse] = ()
    """It is no contradiction if one of them holds."""


def resized(row: Row, size_bytes: int) -> Mend:
    """Give damaged counters their size. Those that are all zero have no key. The count mends the numbers."""
    value = row.value[:size_bytes].ljust(size_bytes, b"\x00")
    return lambda tr: tr.set(row.key, value) if any(value) else tr.clear(row.key)


def claim_mending(tr: Transaction, counter: bytes) -> None:
    """Conflict with other mendings of this counter: each adds the difference that it has seen."""
    key = counter + b"\x00mended"  # a conflict key, which is never written
    tr.add_read_conflict_key(key)
    tr.add_write_conflict_key(key)


def readable(decode: Callable[[bytes], T], value: bytes | None) -> T | None:
    """The decoded value; None for none, and for damaged bytes."""
    try:
        return None if value is None else decode(value)
    except DAMAGED:
        return None


Check = Generator[Any, Seen, None]
OfColumn = Callable[[Row, bytes], Check]
"""The check of a column: it is given the row and the part of its key behind the column."""


def asks_of(first: Any) -> Sequence[Ask]:
    """The keys that a check asks for, which has begun with `first`."""
    return () if first is None or isinstance(first, Suspect) else first


def suspects_of(check: Check, first: Any, seen: Seen) -> Iterable[Suspect]:
    """The contradictions of a check that has begun with `first`."""
    if first is None:
        return ()
    try:
        return [first if isinstance(first, Suspect) else check.send(seen), *check]
    except StopIteration:
        return ()


def _change(row: bytes, keys: Mapping[bytes, bytes] | None, tr: Transaction) -> None:
    if keys is None:
        tr.clear(row)
    for key, value in (keys or {}).items():
        tr.set(key, value)


class Finder:
    """Tells the contradictions that a mending ends."""

    def __init__(self, mending: str) -> None:
        self.mending = mending
        """The command of it."""

    def found(
        self, flaw: Flaw, row: Row, text: str, mend: Mending = None, excuses: Sequence[Excuse] = ()
    ) -> Suspect:
        mending = partial(_change, row.key, mend) if mend is None or isinstance(mend, Mapping) else mend
        return Suspect(flaw, row.key, text, self.mending, mending, excuses)

    @staticmethod
    def nothing(*_: Any) -> Check:
        """The check of a row that names no key, and has any value."""
        yield from ()

    @staticmethod
    def unknown(row: Row, text: str) -> Check:
        yield Suspect(Flaw.UNKNOWN, row.key, text, FOREIGN)

    @staticmethod
    def together(checks: Iterable[Check]) -> Check:
        """Several checks of one row: their keys at once, then their contradictions one after the other."""
        begun = [(check, first) for check in checks if (first := next(check, None)) is not None]
        seen = yield [wanted for _, first in begun for wanted in asks_of(first)]
        for check, first in begun:
            yield from suspects_of(check, first, seen)


class Checks(Finder):
    """The checks of one key space. They are pure: values in, contradictions out."""

    def weight(self, row: Row) -> int:  # noqa: ARG002
        """The bytes that the keys named by the row have, as far as they may be many."""
        return 0

    def check(self, row: Row) -> Check:
        """The check of the row."""
        raise NotImplementedError

    def note(self, row: Row) -> None:
        """Count the row, which was judged: once, in a slice that is over."""

    def asks(self, row: Row) -> Sequence[Ask]:
        """The keys and ranges that `judge` needs for the row."""
        return asks_of(next(self.check(row), None))

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        """The contradictions between the row and the keys that it asks for."""
        check = self.check(row)
        return suspects_of(check, next(check, None), seen)


# The keys that rows name.

_COLUMN_BYTES = 2
_ROWS_PER_KEY = 2
"""Rows that a range read may return for each of its keys."""


def ask(tr: ReadTransaction, prefix: bytes, asks: Collection[Ask]) -> Callable[[], Seen]:
    """Ask for all keys and ranges together. Keys that begin with `prefix` have their column behind it."""
    ranges = {wanted: _ask_range(tr, wanted) for wanted in asks if isinstance(wanted, Under)}
    keys = sorted(wanted for wanted in asks if isinstance(wanted, bytes))
    column_end = len(prefix) + _COLUMN_BYTES
    together = [_Together(tr, list(found)) for _, found in groupby(keys, lambda key: key[:column_end])]

    def answer() -> Seen:
        values: dict[bytes, bytes | None] = dict.fromkeys(keys)
        beyond = [key for one in together for key in one.answer(values)]
        asked = {key: tr.get(key) for key in beyond}
        values |= {key: _bytes_of(value) for key, value in asked.items()}
        return Seen(values, {wanted: list(rows_of(found)) for wanted, found in ranges.items()})

    return answer


class _Together:
    """One read of several keys in ascending order."""

    def __init__(self, tr: ReadTransaction, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._limit = _ROWS_PER_KEY * len(keys)
        self._one: Value | None = tr.get(keys[0]) if len(keys) == 1 else None
        self._range = _read(tr, keys[0], keys[-1] + b"\x00", self._limit) if len(keys) > 1 else None

    def answer(self, values: dict[bytes, bytes | None]) -> Iterator[bytes]:
        """Fill in the values that were read; yield the keys behind the rows that were read."""
        if self._one is not None:
            values[self._keys[0]] = _bytes_of(self._one)
        if self._range is None:
            return
        rows = list(rows_of(self._range))
        values.update((row.key, row.value) for row in rows if row.key in values)
        if len(rows) == self._limit:
            yield from (key for key in self._keys if key > rows[-1].key)


def rows_of(found: Range) -> Iterator[Row]:
    return (Row(bytes(row.key), bytes(row.value)) for row in found)


def first_key(start: bytes, stop: bytes, tr: Transaction) -> bytes | None:
    """The first key of a range. Reads: by snapshot."""
    rows = tr.snapshot.get_range(start, stop, limit=1).to_list()
    return bytes(rows[0].key) if rows else None


def _ask_range(tr: ReadTransaction, keys: Under) -> Range:
    return _read(tr, keys.start, keys.stop, keys.limit or limits.VERIFIED_ROWS_MAX)


def _read(tr: ReadTransaction, start: bytes, stop: bytes, limit: int) -> Range:
    return tr.get_range(start, stop, limit=limit, streaming_mode=EXACT)


def _bytes_of(value: Value) -> bytes | None:
    return bytes(value.value) if value.present() else None


def told_key(key: bytes) -> str:
    """A task key, or unique key, as Python shows it; in hexadecimal if it is damaged."""
    try:
        return repr(layer.unpack(key)[0])
    except (ValueError, IndexError, struct.error):
        return key.hex()
