"""A scan in slices: one transaction, one read version and one batch of keys each.

    round trip 1   the next keys of the range
    round trip 2   the keys that these keys name
    round trip 3   only for a doubtful contradiction: the keys that may explain it

A slice judges each of its keys by keys of the same read version. So a change between two slices is never
reported. All reads are by snapshot: a scan makes no other call conflict, and has no bound of time or bytes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.seam import EXACT, Range, ReadTransaction, Transaction, Value
from fdbqueue.verification import Flaw


class Row(NamedTuple):
    key: bytes
    value: bytes


class Under(NamedTuple):
    """A range of keys, read up to `limit` rows; 0 is limits.VERIFIED_ROWS_MAX."""

    start: bytes
    stop: bytes
    limit: int = 0


def under(keys: slice, limit: int = 0) -> Under:
    return Under(keys.start, keys.stop, limit)


def below(prefix: bytes) -> Under:
    """All keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return Under(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff")


Ask = bytes | Under
Mend = Callable[[Transaction], None]


class Excuse(NamedTuple):
    """Keys that may explain a contradiction: it is none if `explains` is true for their rows."""

    under: Under
    explains: Callable[[Sequence[Row]], bool]


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


class Seen:
    """The values of keys and ranges at the read version of a slice."""

    def __init__(self, values: dict[bytes, bytes | None], ranges: dict[Under, Sequence[Row]]) -> None:
        self._values = values
        self._ranges = ranges

    def value(self, key: bytes) -> bytes | None:
        return self._values[key]

    def rows(self, keys: Under) -> Sequence[Row]:
        return self._ranges[keys]


class Checks(Protocol):
    """The checks of one key space. They are pure: values in, contradictions out."""

    def weight(self, row: Row) -> int:
        """The bytes that the keys named by the row have, as far as they may be many."""

    def asks(self, row: Row) -> Iterable[Ask]:
        """The keys and ranges that `judge` needs for the row."""

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        """The contradictions between the row and the keys that it asks for."""

    def note(self, row: Row) -> None:
        """Count the row, which was judged: once, in a slice that is over."""


@dataclass(frozen=True)
class Slice:
    rows: Sequence[Row]
    suspects: Sequence[tuple[Row, Suspect]]
    next: bytes | None
    """The start of the next slice; None at the end."""


def slices(database: Database, checks: Checks, keys: Under) -> Iterator[Slice]:
    """Scan the range in slices."""
    start: bytes | None = keys.start
    while start is not None:
        found = run(database, partial(read_slice, checks, Under(start, keys.stop)))
        for row in found.rows:
            checks.note(row)
        yield found
        start = found.next


def read_slice(checks: Checks, keys: Under, tr: Transaction) -> Slice:
    """Read and judge the first keys of the range. Reads: by snapshot. Round trips: 2; 3 with a doubt."""
    rows, more = _first_rows(checks, keys, tr.snapshot)
    suspects = judged(checks, rows, tr.snapshot)
    return Slice(rows, suspects, rows[-1].key + b"\x00" if more else None)


def judged(checks: Checks, rows: Sequence[Row], tr: ReadTransaction) -> list[tuple[Row, Suspect]]:
    """The contradictions of `rows`, without those that other keys explain."""
    seen = ask(tr, {ask: None for row in rows for ask in checks.asks(row)})()
    found = [(row, suspect) for row in rows for suspect in checks.judge(row, seen)]
    return [
        (row, suspect) for row, suspect in found if not any(_holds(excuse, tr) for excuse in suspect.excuses)
    ]


def ask(tr: ReadTransaction, asks: Collection[Ask]) -> Callable[[], Seen]:
    """Ask for all keys and ranges together."""
    values: dict[bytes, Value] = {}
    ranges: dict[Under, Range] = {}
    for wanted in asks:
        if isinstance(wanted, Under):
            ranges[wanted] = _ask_range(tr, wanted)
        else:
            values[wanted] = tr.get(wanted)
    return lambda: Seen(
        {key: _bytes_of(value) for key, value in values.items()},
        {keys: list(_rows(found)) for keys, found in ranges.items()},
    )


def _first_rows(checks: Checks, keys: Under, tr: ReadTransaction) -> tuple[list[Row], bool]:
    """The first rows, up to the bounds of a slice, and true if others may follow."""
    rows: list[Row] = []
    weight = 0
    for row in _rows(tr.get_range(keys.start, keys.stop, limit=limits.SLICE_KEYS_MAX)):
        weight += len(row.value) + checks.weight(row)
        if rows and weight > limits.BATCH_BYTES_MAX:
            return rows, True
        rows.append(row)
    return rows, len(rows) == limits.SLICE_KEYS_MAX


def _holds(excuse: Excuse, tr: ReadTransaction) -> bool:
    rows = list(_rows(_ask_range(tr, excuse.under)))
    # Beyond the bound an explanation may follow: a contradiction that is not certain is not reported.
    return len(rows) == limits.VERIFIED_ROWS_MAX or excuse.explains(rows)


def _ask_range(tr: ReadTransaction, keys: Under) -> Range:
    limit = keys.limit or limits.VERIFIED_ROWS_MAX
    return tr.get_range(keys.start, keys.stop, limit=limit, streaming_mode=EXACT)


def _rows(found: Range) -> Iterator[Row]:
    return (Row(bytes(row.key), bytes(row.value)) for row in found)


def _bytes_of(value: Value) -> bytes | None:
    return bytes(value.value) if value.present() else None
