"""The counters of a queue, compared with the keys that they count.

A counter and its keys are compared at one read version, in one transaction of limits.COUNTED_S. If that is
too short, the count goes on in further ones. Then it proves something only if nothing has changed meanwhile:
the values of `quiet`, which every change of the keys changes, are the same in all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.aside import COUNTER, count_in
from fdbqueue.core.checking import Flaw, Suspect, claim_mending
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.seam import WANT_ALL, ReadTransaction, Transaction


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
