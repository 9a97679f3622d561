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

The counters of a queue are compared with the keys that they count, at one read version, in one transaction of
limits.COUNTED_S. If that is too short, the count goes on in further ones. Then it proves something only if
nothing has changed meanwhile: the values of `quiet`, which every change of the keys changes, are the same in
all of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.rows import (
    Checks,
    Count,
    Excuse,
    Flaw,
    Row,
    Suspect,
    Tally,
    Under,
    ask,
    asks_of,
    claim_mending,
    rows_of,
    suspects_of,
    told_key,
)
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import WANT_ALL, Range, ReadTransaction, Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.queues.elements.store import Elements
from fdbqueue.queues.recipe.items import Recipe, size_of
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed, rebuild
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, packed, unpacked


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


_KEYS_TOGETHER = 500
"""Task keys that one transaction compares with their counters."""


def counts_of_tasks(checks: TaskChecks, registered: bool) -> Iterator[Count]:
    """The counters of a queue. Those of classes of failure are known after the scan of `checks`."""
    shape, keys = checks.shape, checks.keys
    # A FairQueue counts no calls, so that its counters may return to an old value.
    quiet = (keys.live, keys.calls) if registered else ()
    states = zip(LIVE_NAMES, (shape.discipline.index, keys.taken, keys.buried, keys.delayed), strict=True)
    for state, under in states:
        yield _count_of_state(state, Tally({state: under}, keys.live, keys.has_shape, quiet))
    for error in sorted(checks.classes):
        tally = Tally({error: keys.classed_under(error)}, keys.class_count(error), keys.has_shape, quiet)
        yield Count(f"buried tasks of the class {error!r}", tally, goes_at_zero=True)
    for feature in checks.features:
        yield from feature.counts()
    if not keys.partition:
        yield _count_of_aside(shape.aside)


def _count_of_state(state: str, tally: Tally) -> Count:
    def number_in(value: bytes | None) -> int:
        return _signed(unpacked(LIVE_NAMES, value)[state])

    return Count(
        f"{state} tasks", tally, number_in, lambda difference: packed(LIVE_NAMES, {state: difference})
    )


def counts_of_recipe(recipe: Recipe) -> Iterator[Count]:
    yield Count("items", Tally({"items": recipe.keys.items}, recipe.keys.size, recipe.keys.is_key), size_of)
    yield _count_of_aside(recipe.aside)


def counts_of_elements(elements: Elements) -> Iterator[Count]:
    keys = elements.keys
    yield Count("elements", Tally({"elements": keys.elements}, keys.count, keys.is_sound))
    yield _count_of_aside(elements.aside)


def _count_of_aside(aside: Aside) -> Count:
    return Count("values set aside", Tally({"values": aside.entries}, aside.count_key))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


# Counters by task key.


def key_counters(database: Database, checks: TaskChecks) -> Iterator[Suspect | str]:
    """Compare the counters of doubtful task keys, some at a time, in one transaction each. A sentence if that
    took too long.
    """
    discipline, keys = checks.shape.discipline, doubtful_keys(checks)
    if isinstance(discipline, Keyed):
        counters = _OfKeys(checks.keys, discipline, checks.mending)
        for at in range(0, len(keys), _KEYS_TOGETHER):
            yield from run(database, partial(counters.compare, keys[at : at + _KEYS_TOGETHER]))


def doubtful_keys(checks: TaskChecks) -> Sequence[bytes]:
    """Task keys with other counters than the tasks that the scan found; some have changed meanwhile."""
    counted: dict[bytes, dict[str, int]] = {}
    for (key, state), number in checks.found_by_key.items():
        counted.setdefault(key, {})[state] = number
    stored = {} if checks.beside is None else checks.beside.counters
    positive = {key: {state: n for state, n in numbers.items() if n} for key, numbers in stored.items()}
    return sorted(
        key for key in counted.keys() | positive.keys() if counted.get(key, {}) != positive.get(key, {})
    )


class _OfKeys:
    """The counters of the task keys of one queue, or of one partition."""

    def __init__(self, keys: TaskKeys, keyed: Keyed, mending: str) -> None:
        self._keys = keys
        self._keyed = keyed
        self.mending = mending

    def compare(self, batch: Sequence[bytes], tr: Transaction) -> Sequence[Suspect | str]:
        counted = self._counted(batch, tr)
        if counted is None:
            return ["The counters of task keys: there are too many tasks to count."]
        stored = {key: self._keyed.counts.numbers(tr, slug_of(key)) for key in batch}
        return [
            Suspect(
                Flaw.KEY_COUNTER,
                self._keyed.counts.counts_key(slug_of(key)),
                f"The counter of the {state} tasks of the task key {told_key(key)} says "
                f"{_signed(stored[key][state]):,}, and there are {counted[key, state]:,}.",
                self.mending,
                partial(self._mend, key),
            )
            for key in batch
            for state in LIVE_NAMES
            if stored[key][state] != counted[key, state]
        ]

    def _counted(self, batch: Sequence[bytes], tr: Transaction) -> Counter[tuple[bytes, str]] | None:
        """The tasks of these keys by state; None if that takes longer than limits.COUNTED_S."""
        now, wanted, counted = runtime_of(tr).monotonic, set(batch), Counter[tuple[bytes, str]]()
        until = now() + limits.COUNTED_S
        for key, state in self._tasks(batch, tr.snapshot):
            if now() > until:
                return None
            if key in wanted:
                counted[key, state] += 1
        return counted

    def _tasks(self, batch: Sequence[bytes], tr: ReadTransaction) -> Iterator[tuple[bytes, str]]:
        """The task keys and states of all tasks that are not ready, and of the ready ones of the batch."""
        keys = self._keys
        for state, under in (("taken", keys.taken), ("buried", keys.buried), ("delayed", keys.delayed)):
            yield from ((bytes(row.value), state) for row in tr.get_range(under.start, under.stop))
        for key in batch:
            fifo = self._keyed.fifo(key)
            yield from ((key, "ready") for _ in tr.get_range(fifo.start, fifo.stop))

    def _mend(self, key: bytes, tr: Transaction) -> None:
        counter = self._keyed.counts.counts_key(slug_of(key))
        claim_mending(tr, counter)
        counted = self._counted([key], tr)
        if counted is not None:
            stored = self._keyed.counts.numbers(tr, slug_of(key))
            tr.add(
                counter,
                packed(LIVE_NAMES, {state: counted[key, state] - stored[state] for state in LIVE_NAMES}),
            )
            tr.compare_and_clear(counter, bytes(len(packed(LIVE_NAMES, {}))))
            rebuild(self._keyed, tr, key)  # the state was judged, and perhaps mended, by the wrong counter
