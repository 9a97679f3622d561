"""Rows of queues, as tools read them: checked, counted, and turned into lines of an export.

Checks are generators that ask for the keys that a row names, and tell the contradictions between them.

    def heartbeat(self, row: Row, rest: list[Any]) -> Check:
        session = self._keys.session(rest[0])
        if not (yield [session]).has(session):
            yield self.found(Flaw.STRAY, row, "A heartbeat belongs to no session.")

A check first yields a list of keys and ranges, and is sent their values as `Seen`. Then it yields each
`Suspect`. A check that needs no other key begins with a Suspect.

The counters of a queue are compared with the keys that they count, at one read version, in one transaction of
limits.COUNTED_S. If that is too short, the count goes on in further ones. Then it proves something only if
nothing has changed meanwhile: the values of `quiet`, which every change of the keys changes, are the same in
all of them.

Sections are what an export reads of a queue, as rows turned into lines (operate/exports/). A feature declares
lines and sections of its own (tasks/rows.py). Bytes of a line are base64 in the file.
"""

import struct
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec
from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.seam import EXACT, WANT_ALL, KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.core.unreadable import COUNTER, DAMAGED, count_in

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


@dataclass(frozen=True)
class Counted:
    """The keys of some ranges, by name, counted up to `place`, and values of the same read version."""

    numbers: Mapping[str, int]
    values: Mapping[bytes, bytes | None]
    place: tuple[int, bytes] | None
    """The number of the range and the key at which the count goes on; None at the end."""


@dataclass(frozen=True)
class Tally:
    """A counter, or several in one value, and the ranges of the keys that it counts."""

    ranges: Mapping[str, slice]
    counter: bytes
    counts: Callable[[bytes], bool] = field(default=lambda _: True)
    """True for a key that the counter counts. Keys of unknown shapes are findings of their own."""
    quiet: Sequence[bytes] = ()
    """Keys that every change of the counted keys changes, and that never return to an old value; empty if
    there are none.
    """


def count(database: Database, tally: Tally) -> Counted | None:
    """The counted keys and the values beside them, as of one version. None if they changed meanwhile.

    Reads: by snapshot.
    """
    first = found = run(database, partial(count_within, tally, None))
    numbers = dict(found.numbers)
    while found.place is not None:
        if not tally.quiet:
            return None
        found = run(database, partial(count_within, tally, found.place))
        if found.values != first.values:
            return None
        numbers = {name: number + found.numbers[name] for name, number in numbers.items()}
    return Counted(numbers, first.values, None)


def count_within(tally: Tally, place: tuple[int, bytes] | None, tr: Transaction) -> Counted:
    """Count from `place` on, for at most limits.COUNTED_S, after one batch at the least."""
    now = runtime_of(tr).monotonic
    until, snapshot = now() + limits.COUNTED_S, tr.snapshot
    asked = {key: snapshot.get(key) for key in (tally.counter, *tally.quiet)}
    values = {key: bytes(value.value) if value.present() else None for key, value in asked.items()}
    numbers = dict.fromkeys(tally.ranges, 0)
    ranges = list(tally.ranges.items())
    at, start = place or (0, ranges[0][1].start)
    while True:
        name, under = ranges[at]
        keys, following = _batch(snapshot, start, under.stop)
        numbers[name] += sum(map(tally.counts, keys))
        if following is None:
            at += 1
            if at == len(ranges):
                return Counted(numbers, values, None)
            following = ranges[at][1].start
        start = following
        if now() >= until:
            return Counted(numbers, values, (at, start))


def _batch(tr: ReadTransaction, start: bytes, stop: bytes) -> tuple[Sequence[bytes], bytes | None]:
    """The next keys, and the place behind them; None at the end."""
    keys: list[bytes] = []
    size_bytes = 0
    for row in tr.get_range(start, stop, limit=limits.COUNTED_ROWS, streaming_mode=WANT_ALL):
        keys.append(bytes(row.key))
        size_bytes += len(row.value)
        if len(keys) == limits.COUNTED_ROWS or size_bytes > limits.BATCH_BYTES_MAX:
            return keys, keys[-1] + b"\x00"
    return keys, None


@dataclass(frozen=True)
class Count:
    """A counter: its tally of one range, the decoder of its value, and the operand that adds a difference."""

    told: str
    tally: Tally
    value_of: Callable[[bytes | None], int] = field(default=count_in)
    operand: Callable[[int], bytes] = field(default=COUNTER.pack)
    goes_at_zero: bool = False

    def compare(self, found: Counted, mending: str) -> Suspect | None:
        counted, stored = self._both(found)
        if counted == stored:
            return None
        text = f"The counter of {self.told} says {stored:,}, and there are {counted:,}."
        return Suspect(Flaw.COUNTER, self.tally.counter, text, mending, self._mend)

    def _mend(self, tr: Transaction) -> None:
        """Add the difference, which no other change of the queue changes. No conflict with these changes."""
        claim_mending(tr, self.tally.counter)
        found = count_within(self.tally, None, tr)
        if found.place is None:
            counted, stored = self._both(found)
            tr.add(self.tally.counter, self.operand(counted - stored))
            if self.goes_at_zero:
                tr.compare_and_clear(self.tally.counter, self.operand(0))

    def _both(self, found: Counted) -> tuple[int, int]:
        return sum(found.numbers.values()), self.value_of(found.values[self.tally.counter])


def compared(database: Database, counts: Iterable[Count], mending: str) -> Iterator[Suspect | str | None]:
    """Of each counter a contradiction, or a sentence if the queue changed too fast to tell, or None."""
    for each in counts:
        found = count(database, each.tally)
        told = f"The counter of {each.told}: there are too many to count while they change."
        yield told if found is None else each.compare(found, mending)


Pair = tuple[bytes, bytes]
"""The last part of a key, and its value."""
Counts = dict[str, int]
NO_ROWS = slice(b"", b"")


class Line(msgspec.Struct, tag_field="line"):
    """Append fields with a default. A field that is not known here is ignored. Lines are never changed."""


class ContentLine(Line):
    """A line with contents of a queue."""


class KeyLine(ContentLine, tag="key"):
    """A key that is copied as it is; `key` is the part behind the prefix of the partition."""

    partition: int
    key: bytes
    value: bytes


class Batch(NamedTuple):
    lines: Sequence[ContentLine]
    used: int
    counts: Counts = {}


Read = Callable[[Transaction, Sequence[KeyValue]], Batch]
"""Turns the next rows of a section into lines; it uses one row at least."""


@dataclass(frozen=True)
class Section:
    under: slice
    read: Read

    def batch(self, tr: Transaction, begin: bytes) -> tuple[Batch, bytes]:
        """The next batch from the key `begin` on, and the key behind it; empty at the end of the section.

        Reads: at most limits.EXPORT_BATCH_ROWS rows and the keys that belong to them, by snapshot.
        """
        rows, is_end = _some(tr, begin or self.under.start, self.under.stop)
        if not rows:
            return Batch((), 0), b""
        found = self.read(tr, rows)
        ends = is_end and found.used == len(rows)
        return found, b"" if ends else bytes(rows[found.used - 1].key) + b"\x00"


def _some(tr: Transaction, begin: bytes, end: bytes) -> tuple[list[KeyValue], bool]:
    """The next rows, and true if there are no more."""
    rows, size_bytes = list[KeyValue](), 0
    for row in tr.snapshot.get_range(begin, end, limit=limits.EXPORT_BATCH_ROWS):
        rows.append(row)
        size_bytes += len(row.value)
        if size_bytes > limits.EXPORT_BATCH_BYTES:
            return rows, False
    return rows, len(rows) < limits.EXPORT_BATCH_ROWS


def single(key: bytes) -> slice:
    return slice(key, key + b"\x00")


def rows_in(tr: Transaction, under: slice) -> Callable[[], list[Pair]]:
    """Ask for the rows of a range, by snapshot. The reply has them without the start of the range."""
    if under == NO_ROWS:
        return list
    found = tr.snapshot.get_range(under.start, under.stop)
    start = len(under.start)
    return lambda: [(bytes(row.key[start:]), bytes(row.value)) for row in found]


def as_they_are(under: slice, prefix: bytes, partition: int = 0) -> Section:
    def read(_: Transaction, rows: Sequence[KeyValue]) -> Batch:
        lines = [KeyLine(partition, bytes(row.key[len(prefix) :]), bytes(row.value)) for row in rows]
        return Batch(lines, len(rows))

    return Section(under, read)


def set_rows(tr: Transaction, start: bytes, rows: Sequence[Pair]) -> None:
    for rest, value in rows:
        tr.set(start + rest, value)


class NotOurs(ValueError):
    """A line has contents that no export of this kind of queue has."""


def read_as(decode: Callable[[bytes], T], value: bytes) -> T:
    """Raises: NotOurs for damaged bytes."""
    try:
        return decode(value)
    except DAMAGED as reason:
        raise NotOurs(str(reason)) from reason
