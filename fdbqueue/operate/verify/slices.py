"""A scan in slices: the next keys of a range, judged by keys of the same read version.

    round trip 1   the next keys of the range; they are asked for with the keys that the slice before names
    round trip 2   the keys that these keys name; a third one for those that do not lie side by side
    one more       only for doubtful contradictions: the keys that may explain them

One transaction reads up to limits.SLICES_TOGETHER slices, for limits.VERIFIED_S. If it runs again, because it
became too old, it reads half of the keys.

A slice judges each of its keys by keys of the same read version. So a change between two slices is never
reported. All reads are by snapshot: a scan makes no other call conflict, and has no bound of time or bytes.

Rows that lie side by side mostly name keys that lie side by side, too: ids of tasks and places in an order
grow with the time of the put. So the keys of one column are read as one range, in place of one read each. If
strangers fill that range, the keys behind them are read one by one: these are the second round trip.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.rows import Checks, Excuse, Row, Suspect, Under, ask, asks_of, rows_of, suspects_of
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import WANT_ALL, Range, ReadTransaction, Transaction


@dataclass(frozen=True)
class Slice:
    rows: Sequence[Row]
    suspects: Sequence[tuple[Row, Suspect]]
    next: bytes | None
    """The start of the next slice; None at the end."""


def slices(database: Database, checks: Checks, prefix: bytes, keys: Under) -> Iterator[Slice]:
    """Scan the range in slices. `prefix` is that of the queue, or of the root."""
    scan = _Scan(checks, prefix, keys, database.runtime)
    while scan.start is not None:
        found = run(database, scan.read)
        for one in found:
            for row in one.rows:
                checks.note(row)
            yield one
        scan.go_on(found[-1].next)


class _Scan:
    """A scan of one range: the place that it has reached, and its pace."""

    def __init__(self, checks: Checks, prefix: bytes, keys: Under, runtime: Runtime) -> None:
        self.start: bytes | None = keys.start
        self._checks = checks
        self._prefix = prefix
        self._stop = keys.stop
        self._runtime = runtime
        self._limit = limits.SLICE_KEYS_MAX
        self._most = limits.SLICES_TOGETHER
        self._is_again = False

    def read(self, tr: Transaction) -> list[Slice]:
        """Read and judge the next slices. Reads: by snapshot. Round trips: 1, and 1 for each slice."""
        if self._is_again:
            self._limit, self._most = max(self._limit // 2, 1), 1
        self._is_again = True
        until, found = self._runtime.monotonic() + limits.VERIFIED_S, list[Slice]()
        asked = self._ask_rows(tr, self.start)
        while asked is not None:
            rows, following = _first_rows(self._checks, asked, self._limit)
            suspects = _look(self._checks, self._prefix, rows, tr.snapshot)
            is_last = len(found) + 1 >= self._most or self._runtime.monotonic() >= until
            asked = None if is_last else self._ask_rows(tr, following)
            found.append(Slice(rows, suspects(), following))
        return found

    def go_on(self, start: bytes | None) -> None:
        """Begin the next transaction there. It is as fast as before, if this one ran once."""
        self.start = start
        self._limit = min(2 * self._limit, limits.SLICE_KEYS_MAX)
        self._most = min(2 * self._most, limits.SLICES_TOGETHER)
        self._is_again = False

    def _ask_rows(self, tr: Transaction, start: bytes | None) -> Range | None:
        if start is None:
            return None
        return tr.snapshot.get_range(start, self._stop, limit=self._limit, streaming_mode=WANT_ALL)


def judged(
    checks: Checks, prefix: bytes, rows: Sequence[Row], tr: ReadTransaction
) -> list[tuple[Row, Suspect]]:
    """The contradictions of `rows`, without those that other keys explain."""
    return _look(checks, prefix, rows, tr)()


def _look(
    checks: Checks, prefix: bytes, rows: Sequence[Row], tr: ReadTransaction
) -> Callable[[], list[tuple[Row, Suspect]]]:
    """Ask for the keys that the rows name."""
    begun = [(row, check := checks.check(row), next(check, None)) for row in rows]
    asked = ask(tr, prefix, {wanted: None for _, _, first in begun for wanted in asks_of(first)})

    def suspects() -> list[tuple[Row, Suspect]]:
        seen = asked()
        found = [(row, suspect) for row, check, first in begun for suspect in suspects_of(check, first, seen)]
        excuses = {excuse.under: None for _, suspect in found for excuse in suspect.excuses}
        if not excuses:
            return found
        told = ask(tr, prefix, excuses)()
        return [
            (row, suspect)
            for row, suspect in found
            if not any(_holds(excuse, told.rows(excuse.under)) for excuse in suspect.excuses)
        ]

    return suspects


def _first_rows(checks: Checks, asked: Range, limit: int) -> tuple[list[Row], bytes | None]:
    """The first rows, up to the bounds of a slice, and the start of the next one; None at the end."""
    rows: list[Row] = []
    weight = 0
    for row in rows_of(asked):
        weight += len(row.value) + checks.weight(row)
        if rows and weight > limits.BATCH_BYTES_MAX:
            return rows, rows[-1].key + b"\x00"
        rows.append(row)
    return rows, rows[-1].key + b"\x00" if len(rows) == limit else None


def _holds(excuse: Excuse, rows: Sequence[Row]) -> bool:
    # Beyond the bound an explanation may follow: a contradiction that is not certain is not reported.
    return len(rows) == limits.VERIFIED_ROWS_MAX or excuse.explains(rows)
