"""The writes of a worker with batches: python -m benchmarks.batches [--url URL]

A worker of one thread takes and acks TASKS tasks, which are there before it begins. Each row is a size of
its batches, and the cost of one task: its mutations, and the transactions that commit some. They are those of
the threads that take and that ack, with their receipts. A put is not counted, nor is the session of the
process. The column `renewal` is what each renewal adds: a handler has one after a third of the ttr.
"""

import argparse
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fdbqueue
from benchmarks.fresh import fresh_queue, leaving_nothing
from benchmarks.writes import Counting, CountingTransaction
from fdbqueue import Database, TaskQueue, Worker

TASKS = 1_000
SIZES = (None, 1, 10, 100)
"""None: a handler of single tasks, in a worker without batches."""
KINDS: dict[str, dict[str, float]] = {
    "fifo": {},
    "fifottl": {"ttr": 60},
    "fifottl ttl": {"ttr": 60, "ttl": 600},
}
MUTATIONS_WANTED, TRANSACTIONS_WANTED = 8.0, 0.05
COUNTED = ("fdbqueue-feeder", "fdbqueue-worker")


class CountingThreads(Counting):
    """Counts the mutations of each thread, and its commits of transactions with some, by its name."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.mutations = Counter[str]()
        self.commits = Counter[str]()

    def create_transaction(self) -> "CommitCounting":
        return CommitCounting(self, self._engine.create_transaction())

    def count(self, *_: bytes) -> None:
        self.mutations[threading.current_thread().name] += 1


class CommitCounting(CountingTransaction):
    def __init__(self, engine: CountingThreads, tr: Any) -> None:
        super().__init__(engine, tr)
        self._name = threading.current_thread().name
        self._before = engine.mutations[self._name]

    def commit(self) -> Any:
        engine: Any = self.db
        engine.commits[self._name] += engine.mutations[self._name] > self._before
        return self._tr.commit()


@dataclass(frozen=True)
class Cost:
    """That of one task."""

    mutations: float
    transactions: float
    renewed: float = 0.0
    renewals: float = 0.0

    @property
    def is_as_wanted(self) -> bool:
        return self.mutations <= MUTATIONS_WANTED and self.transactions <= TRANSACTIONS_WANTED


def cost(opened: Database, kind: str, size: int | None) -> Cost:
    engine = CountingThreads(opened.engine)
    db = Database(engine, opened.runtime)
    queue = fresh_queue(opened, kind.split()[0], **KINDS[kind])
    for _ in range(TASKS // 500):
        queue.put_many(opened, ["v" * 20] * 500)
    here = TaskQueue.open(db, queue.name)
    options: dict[str, Any] = {} if size is None else {"batch": size, "batch_wait_s": 0}
    worker = Worker(db, here, lambda _: None, threads=1, **options)
    worker.run(until_empty=True)
    assert worker.status().tally.done == TASKS
    mutations, commits = (
        sum(found[name] for name in COUNTED) for found in (engine.mutations, engine.commits)
    )
    queue.put_many(opened, ["v" * 20] * (size or 1))
    tasks, name = here.take_many(db, size or 1), threading.current_thread().name
    engine.mutations[name] = engine.commits[name] = 0
    here.renew(db, tasks)
    renewed, renewals = engine.mutations[name] / len(tasks), engine.commits[name] / len(tasks)
    db.close()
    return Cost(mutations / TASKS, commits / TASKS, renewed, renewals)


def table(opened: Database) -> Iterator[str]:
    yield f"{'a task of':14}{'batch':>8}{'mutations':>12}{'transactions':>14}{'renewal':>18}{'wanted':>8}"
    for kind in KINDS:
        for size in SIZES:
            one = cost(opened, kind, size)
            verdict = ("ok" if one.is_as_wanted else "ABOVE") if size == 100 else ""
            renewal = f"{one.renewed:.2f}, {one.renewals:.3f}"
            told = "none" if size is None else str(size)
            yield f"{kind:14}{told:>8}{one.mutations:12.2f}{one.transactions:14.3f}{renewal:>18}{verdict:>8}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    arguments = parser.parse_args()
    with leaving_nothing(arguments.url), fdbqueue.open(arguments.url) as opened:
        for line in table(opened):
            print(line)


if __name__ == "__main__":
    main()
