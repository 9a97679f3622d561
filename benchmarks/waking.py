"""How soon a waiting call has an item that was put: python -m benchmarks.waking [--url URL] [--quick]

One process puts, one at a time, each time after a pause in which the waiting calls fall asleep again. Other
processes wait, and report when their call has returned, by the clock that all processes of a machine share.
The raw rows do the same with the binding alone: a commit, a watch, a watch followed by a transaction. Rows
are in milliseconds since the put began. The last column counts the transactions of all waiting processes
for each put, those of their keepers included. Without --url: a durable directory of the embedded engine.
"""

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core import binding
from fdbqueue.core.database import as_database, run

PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 0.15
LOST_S = 30.0
LEASE_S = 3_600
"""Longer than a run: a lease that ends would put a task that nothing has put."""

Put = Callable[[int], object]
Wait = Callable[[], object]


@dataclass(frozen=True)
class Kind:
    """A way to wait: `put` of the putting process, and one waiting call for each `session`."""

    name: str
    put: Callable[[fdbqueue.Database, Subspace], Put]
    wait: Callable[[fdbqueue.Database, Subspace], Wait]


@dataclass
class Seen:
    """Milliseconds from the begin of each put to its end, and to the return of a waiting call."""

    put_ms: list[float]
    woken_ms: list[float]
    transactions: float

    def row(self, name: str) -> str:
        return (
            f"{name:34}{statistics.median(self.put_ms):10.1f}{statistics.median(self.woken_ms):10.1f}"
            f"{quantile(self.woken_ms, 0.9):10.1f}{quantile(self.woken_ms, 0.99):10.1f}"
            f"{self.transactions:10.1f}"
        )


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# The ways to wait.


def _raw_put(db: fdbqueue.Database, space: Subspace) -> Put:
    return lambda number: run(db, lambda tr: tr.set(space["raw"].key(), b"%d" % number))


def _raw_watch(db: fdbqueue.Database, space: Subspace) -> Wait:
    def sleep() -> None:
        run(db, lambda tr: tr.watch(space["raw"].key())).wait()

    return sleep


def _raw_watch_and_commit(db: fdbqueue.Database, space: Subspace) -> Wait:
    sleep, key = _raw_watch(db, space), space["taken"].key()

    def take(tr: Any) -> None:
        tr.get(key).wait()
        tr.set(key, b"taken")

    return lambda: (sleep(), run(db, take))


def _queue(space: Subspace) -> fdbqueue.Queue:
    return fdbqueue.Queue(space["items"], root=space["root"])


def _tasks(db: fdbqueue.Database, space: Subspace) -> fdbqueue.TaskQueue:
    return fdbqueue.TaskQueue.create(
        db, "tasks", "fifottl", ttr=LEASE_S, if_not_exists=True, root=space["root"]
    )


def _item_put(db: fdbqueue.Database, space: Subspace) -> Put:
    queue = _queue(space)
    return lambda number: queue.enqueue(db, number)


def _task_put(db: fdbqueue.Database, space: Subspace) -> Put:
    queue = _tasks(db, space)
    return lambda number: queue.put(db, number)


def _take(db: fdbqueue.Database, space: Subspace) -> Wait:
    queue = _tasks(db, space)
    session = fdbqueue.Session(db, root=space["root"])
    return lambda: queue.take(db, LOST_S * 10, session=session)


KINDS = [
    Kind("raw: a watch", _raw_put, _raw_watch),
    Kind("raw: a watch, then a transaction", _raw_put, _raw_watch_and_commit),
    Kind(
        "dequeue",
        _item_put,
        lambda db, space: lambda: _queue(space).dequeue(db, timeout=LOST_S * 10),
    ),
    Kind("take", _task_put, _take),
]


# The waiting processes.


class CountedDatabase:
    """Counts the transactions that a database has begun, retries included."""

    def __init__(self, db: fdbqueue.Database) -> None:
        self._begun = 0
        self._db = db
        self._create = db.create_transaction
        db.create_transaction = self._counted  # type: ignore[method-assign]

    def _counted(self) -> Any:
        self._begun += 1
        return self._create()

    @property
    def transactions(self) -> int:
        return self._begun + self._db.counters.conflicts


def _serve(
    url: str, space: Subspace, kind_number: int, sessions: int, has_knobs: bool, orders: Connection
) -> None:
    kind = KINDS[kind_number]
    if has_knobs:
        binding.for_this_program()
    with fdbqueue.open(url) as db:
        counted, lock = CountedDatabase(as_database(db)), threading.Lock()

        def work(wait_once: Wait) -> None:
            while True:
                wait_once()
                now = time.monotonic()
                with lock:
                    orders.send(("woken", now))

        for wait_once in [kind.wait(db, space) for _ in range(sessions)]:
            threading.Thread(target=work, args=(wait_once,), daemon=True).start()
        while orders.recv() == "count":
            with lock:
                orders.send(("transactions", counted.transactions))


class Waiters:
    """Processes that wait, until the end of the context."""

    def __init__(self, url: str, space: Subspace, kind_number: int, plan: "Plan") -> None:
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []
        for number in range(plan.processes):
            ours, theirs = context.Pipe()
            share = plan.sessions // plan.processes + (number < plan.sessions % plan.processes)
            process = context.Process(
                target=_serve, args=(url, space, kind_number, share, plan.has_knobs, theirs), daemon=True
            )
            process.start()
            self._members.append((process, ours))

    @property
    def _pipes(self) -> list[Connection]:
        return [pipe for _, pipe in self._members]

    def woken_at(self, count: int) -> list[float]:
        """When the next `count` waiting calls have returned."""
        times: list[float] = []
        deadline = time.monotonic() + LOST_S
        while len(times) < count and time.monotonic() < deadline:
            times += [pipe.recv()[1] for pipe in wait(self._pipes, LOST_S) if isinstance(pipe, Connection)]
        if len(times) < count:
            raise SystemExit(f"nothing was taken for {LOST_S:g} s")
        return times

    def transactions(self) -> int:
        for pipe in self._pipes:
            pipe.send("count")
        return sum(pipe.recv()[1] for pipe in self._pipes)

    def __enter__(self) -> "Waiters":
        return self

    def __exit__(self, *exc: object) -> None:
        for process, _ in self._members:
            process.kill()
            process.join()


def measure(db: fdbqueue.Database, url: str, space: Subspace, kind_number: int, plan: "Plan") -> Seen:
    kind = KINDS[kind_number]
    put = kind.put(db, space)
    with Waiters(url, space, kind_number, plan) as waiters:
        time.sleep(plan.settle_s)
        seen, before = Seen([], [], 0.0), waiters.transactions()
        for number in range(plan.puts):
            time.sleep(random.uniform(PAUSE_MIN_S, PAUSE_MAX_S))
            began = time.monotonic()
            put(number)
            seen.put_ms.append((time.monotonic() - began) * 1000)
            seen.woken_ms.append((waiters.woken_at(1)[0] - began) * 1000)
        seen.transactions = (waiters.transactions() - before) / plan.puts
    return seen


@dataclass(frozen=True)
class Plan:
    puts: int
    sessions: int
    processes: int
    settle_s: float
    has_knobs: bool


@contextmanager
def opened(url: str | None) -> Iterator[tuple[fdbqueue.Database, str, Subspace]]:
    """A database, its URL, and a subspace of this run's own, which is cleared at the end."""
    with tempfile.TemporaryDirectory() as directory:
        url = url or f"embedded:{directory}/data"
        space = Subspace(("fdbqueue-benchmark", random.randbytes(6)))
        with fdbqueue.open(url) as db:
            try:
                yield db, url, space
            finally:
                run(db, lambda tr: tr.clear_range(space.range().start, space.range().stop))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--default-knobs", action="store_true", help="as an application that leaves the client library alone"
    )
    parser.add_argument("--puts", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    arguments = parser.parse_args()
    puts = 20 if arguments.quick else arguments.puts
    has_knobs = not arguments.default_knobs
    if has_knobs:
        binding.for_this_program()
    alone = Plan(puts, 1, 1, 1.0, has_knobs)
    crowd = Plan(puts, arguments.sessions, arguments.processes, 2.0 if arguments.quick else 8.0, has_knobs)
    with opened(arguments.url) as (db, url, space):
        print(f"{'milliseconds':34}{'put':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'trans.':>10}")
        for number, kind in enumerate(KINDS):
            print(measure(db, url, space[number], number, alone).row(kind.name), flush=True)
        name = f"take, {crowd.sessions} sessions wait"
        print(measure(db, url, space["crowd"], len(KINDS) - 1, crowd).row(name), flush=True)


if __name__ == "__main__":
    main()
