"""A scrape beside a long backlog: python -m benchmarks.scrape [--tasks N] [--queues N] [--url URL]

Queues under a root of its own, 100 tasks in each. Then one of them gets more, up to N tasks, and another as
many with 10,000 task keys. At each length: the time of a look of an overview, of a page of the collector,
and, for comparison, of the statistics of each queue in turn.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace
from prometheus_client import CollectorRegistry, generate_latest

import fdbqueue
from fdbqueue.integrations.prometheus import QueueCollector

KEYS = 10_000
BATCH = 500
ROUNDS = 31


def fill(db: fdbqueue.Database, queue: fdbqueue.TaskQueue, there: int, wanted: int, keyed: bool) -> None:
    for number in range(there, wanted, BATCH):
        options: dict[str, Any] = {"key": number // BATCH % KEYS} if keyed else {}
        queue.put_many(db, range(number, min(number + BATCH, wanted)), **options)


def shown_ms(call: Callable[[], object]) -> str:
    """The median of the rounds and, as the machine is shared, the fastest one."""
    call()  # the first look has to find the queues
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return f"{statistics.median(times) * 1000:.1f} ms ({min(times) * 1000:.1f})"


def measure(db: fdbqueue.Database, root: Subspace, tasks: int) -> None:
    overview, registry = fdbqueue.Overview(root=root), CollectorRegistry()
    registry.register(QueueCollector(db, root=root))
    look, page = shown_ms(lambda: overview.figures(db)), shown_ms(lambda: generate_latest(registry))
    each, size_kb = (
        shown_ms(lambda: fdbqueue.statistics(db, root=root)),
        len(generate_latest(registry)) / 1000,
    )
    print(f"{tasks:>9,} tasks: look {look}, page of {size_kb:.0f} kB {page}, statistics one by one {each}")


def run(db: fdbqueue.Database, root: Subspace, lengths: list[int], queues: int) -> None:
    names = [f"queue-{number:03}" for number in range(queues - 2)]
    for queue in [fdbqueue.TaskQueue.create(db, name, "fifottl", root=root) for name in names]:
        fill(db, queue, 0, 100, keyed=False)
    long = fdbqueue.TaskQueue.create(db, "long", "fifottl", root=root)
    fair = fdbqueue.TaskQueue.create(db, "fair", "fair", root=root)
    there = 0
    for wanted in lengths:
        fill(db, long, there, wanted, keyed=False)
        fill(db, fair, there, wanted, keyed=True)
        there = wanted
        measure(db, root, 2 * wanted + 100 * len(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="tasks at the end")
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--url", help="default: a durable directory of the embedded engine")
    asked = parser.parse_args()
    root = Subspace(("fdbqueue-benchmark", os.urandom(8).hex()))
    with (
        tempfile.TemporaryDirectory() as directory,
        fdbqueue.open(asked.url or f"embedded:{directory}") as db,
    ):
        try:
            last = asked.tasks // 2
            run(db, root, sorted({min(1_000, last), min(50_000, last), last}), asked.queues)
        finally:
            db.clear_range_startswith(root.key())


if __name__ == "__main__":
    main()
