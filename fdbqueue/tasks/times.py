"""Times: how long tasks waited and ran in the last hour, as counts in buckets, of a queue with a chronicle.

The upper bound of a bucket is GROWTH times its lower one, so a quantile is wrong by a tenth at most, from a
millisecond to a week. Each worker counts in its memory, and adds its counts once a minute (fleet/timing.py).
A span is a third of an hour; figures of the last hour are those of the present span and of the three before.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fdbqueue.core import limits
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.seam import ReadTransaction, Transaction

GROWTH, FIRST_S, BUCKETS = 1.2, 0.001, 112
_COUNTS = struct.Struct(f"<{2 * BUCKETS}I")
COUNTS_BYTES = _COUNTS.size
Counts = Sequence[int]
"""By bucket, the waits first, the runs behind them: together one little-endian number to add."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long something lasted, in seconds; each quantile is wrong by a tenth at most."""

    count: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Times:
    """Attempts of workers that have ended in the last hour, up to twenty minutes more."""

    waiting: Durations | None
    """From the put to the take, delays included; of first attempts only. None without any."""
    running: Durations | None


def bucket_of(seconds: float) -> int:
    if seconds <= FIRST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(seconds / FIRST_S, GROWTH)))


def counts_to_bytes(counts: Counts) -> bytes:
    return _COUNTS.pack(*counts)


def span_of(now_us: int) -> int:
    return now_us // round(limits.TIMES_SPAN_S * 1_000_000)


def add_times(tr: Transaction, keys: SharedKeys, counts: Mapping[bytes, Counts], now_us: int) -> None:
    """Add counts by task key, those of the whole queue without one. Clears the spans that are over. Reads
    nothing, and conflicts with nothing.
    """
    span = span_of(now_us)
    tr.clear_range(keys.times.start, keys.times_at(span - limits.TIMES_SPANS, b""))
    for key, numbers in counts.items():
        tr.add(keys.times_at(span, key), counts_to_bytes(numbers))


def ask_times(
    tr: ReadTransaction, keys: SharedKeys, task_keys: Sequence[bytes], now_us: int
) -> Callable[[], dict[bytes, Times]]:
    """Ask for the times of these task keys, and of the whole queue without one. Reads: limits.TIMES_SPANS
    keys of each.
    """
    spans = range(span_of(now_us) - limits.TIMES_SPANS + 1, span_of(now_us) + 1)
    asked = {key: [tr.get(keys.times_at(span, key)) for span in spans] for key in task_keys}
    return lambda: {key: times_of([one.value for one in values]) for key, values in asked.items()}


def times_of(values: Sequence[bytes | None]) -> Times:
    rows = [_COUNTS.unpack(value) for value in values if value is not None and len(value) == _COUNTS.size]
    counts = [sum(column) for column in zip(*rows, strict=True)] or [0] * (2 * BUCKETS)
    return Times(durations_of(counts[:BUCKETS]), durations_of(counts[BUCKETS:]))


def durations_of(counts: Counts) -> Durations | None:
    total = sum(counts)
    return Durations(total, *(_quantile_s(counts, total * part) for part in (0.5, 0.99))) if total else None


def _quantile_s(counts: Counts, rank: float) -> float:
    """The middle of the bucket with the value of this rank, by its logarithm."""
    bucket = next(number for number, behind in enumerate(accumulate(counts)) if behind >= rank)
    return float(FIRST_S * GROWTH ** (bucket - 0.5))
