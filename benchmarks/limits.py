"""A fleet under limits that do not bind: python -m benchmarks.limits [--quick] [--asks] [--url URL]

Measures the tasks per second of a fleet of two processes, for a queue without limits, with one of slots, with
one of starts, and with tasks that name the one of slots. Both are far above the needs of the fleet. A limit
must leave it at least 0.9 of its throughput. A handler does nothing, so the processor is the bound; with
--asks, it waits for 50 ms, as for the answer of a service. Without --url: the embedded engine, with fsync, in
a temporary directory.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fdbqueue
from benchmarks.fresh import fresh_queue, leaving_nothing
from benchmarks.measure import Row, compare, table
from fdbqueue import Fleet, FleetStatus, Limit

PROCESSES, THREADS = 2, 8
ANSWER_S = 0.05
WANTED = 0.9
SLOTS, STARTS = "benchmark slots", "benchmark starts"
WITHOUT = "no limit"


def ask(_: Any) -> None:
    """A handler that waits for a service."""
    time.sleep(ANSWER_S)


def fleet(url: str, tasks: int, handler: str, limits: list[str], named: bool = False) -> float:
    """Tasks a second while the fleet works: from its first done task to its last."""
    with fdbqueue.open(url) as db:
        options: dict[str, Any] = {"task_limits" if named else "limits": limits}
        queue = fresh_queue(db, ttr=60, **options)
        for start in range(0, tasks, 500):
            queue.put_many(db, [None] * min(500, tasks - start), limits=limits if named else None)
        seen: list[tuple[float, int]] = []

        def look(_: FleetStatus) -> None:
            seen.append((time.perf_counter(), queue.statistics(db)["calls"]["ack"]))
            if seen[-1][1] == tasks:
                made.stop()

        made = Fleet(url, queue.name, handler, processes=PROCESSES, threads=THREADS)
        made.run(look)
    busy = [(at, done) for at, done in seen if 0 < done < tasks] or seen
    (began, first), (ended, last) = busy[0], busy[-1]
    return (last - first) / (ended - began) if ended > began else 0.0


def measured(url: str, tasks: int, handler: str, rounds: int) -> list[Row]:
    with fdbqueue.open(url) as db:
        Limit.set(db, SLOTS, slots=1_000)
        Limit.set(db, STARTS, rate=1_000_000, per=1, burst=100_000)
    named = {WITHOUT: [], f"{1_000} slots": [SLOTS], "1,000,000 starts a second": [STARTS]}
    cases: dict[str, Callable[[], float]] = {
        name: partial(fleet, url, tasks, handler, names) for name, names in named.items()
    }
    cases["1,000 slots, named by each task"] = partial(fleet, url, tasks, handler, [SLOTS], named=True)
    rows = compare(cases, WITHOUT, rounds)
    return [Row(row.name, row.per_second, row.ratio, WANTED) for row in rows.values()]


def removed(url: str) -> None:
    with fdbqueue.open(url) as db:
        for name in (SLOTS, STARTS):
            Limit.delete(db, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tasks and rounds")
    parser.add_argument("--asks", action="store_true", help="handlers that wait for 50 ms")
    parser.add_argument("--url", help="a database [embedded, in a temporary directory]")
    parser.add_argument("--rounds", type=int, help="short ones in turn: noise falls on all rows alike [7]")
    options = parser.parse_args()
    tasks, rounds = (2_000, 3) if options.quick else (10_000, 7)
    rounds, handler = (
        options.rounds or rounds,
        f"benchmarks.{'limits:ask' if options.asks else 'fleet:nothing'}",
    )
    with tempfile.TemporaryDirectory() as directory:
        url = options.url or f"embedded:{directory}/data"
        with leaving_nothing(url):
            rows = measured(url, tasks, handler, rounds)
        removed(url)
    print(table(f"fleet of {PROCESSES} processes, {THREADS} threads each", rows))


if __name__ == "__main__":
    main()
