"""What every benchmark here needs: rates over several interleaved rounds, medians, ratios, one table.

A figure is measured in the same run as its baseline, round by round in turn, because the machine is
shared: the median of the round-by-round ratios is the number to quote.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

Operation = Callable[[], object]


@dataclass(frozen=True)
class Row:
    name: str
    per_second: float
    ratio: float | None = None
    wanted: float | None = None

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.wanted is None:
            return ""
        return "ok" if self.ratio >= self.wanted else "BELOW"


def rate(operation: Operation, seconds: float) -> float:
    """Operations a second of one thread, over about `seconds`."""
    count, started = 0, time.perf_counter()
    deadline = started + seconds
    while (now := time.perf_counter()) < deadline:
        operation()
        count += 1
    return count / (now - started)


def threaded_rate(make_operation: Callable[[int], Operation], threads: int, seconds: float) -> float:
    """Operations a second of `threads` threads together; each gets an operation of its own."""
    counts = [0] * threads
    gate = threading.Barrier(threads + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        operation = make_operation(number)
        gate.wait()
        while not stop.is_set():
            operation()
            counts[number] += 1

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    gate.wait()
    started = time.perf_counter()
    time.sleep(seconds)
    total, elapsed = sum(counts), time.perf_counter() - started
    stop.set()
    for worker in workers:
        worker.join()
    return total / elapsed


def compare(measures: dict[str, Callable[[], float]], baseline: str, rounds: int) -> dict[str, Row]:
    """Measure all in turn, `rounds` times; each row's ratio is the median of its rounds' ratios."""
    seen: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            seen[name].append(measure())
    ratios = {
        name: statistics.median(a / b for a, b in zip(rates, seen[baseline], strict=True))
        for name, rates in seen.items()
    }
    return {name: Row(name, statistics.median(rates), ratios[name]) for name, rates in seen.items()}


def table(title: str, rows: list[Row]) -> str:
    lines = [f"\n{title}", f"{'':44}{'per second':>12}{'ratio':>9}{'wanted':>9}"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        wanted = "" if row.wanted is None else f"{row.wanted:.2f}"
        lines.append(f"{row.name:44}{row.per_second:12,.0f}{ratio:>9}{wanted:>9}  {row.verdict}")
    return "\n".join(lines)


def anonymous_bytes() -> int:
    """Memory of this process that is its own: pages of a mapped file can be dropped at any time."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
