"""Conflicts and commits for each task: python -m benchmarks.partitions --url URL
[--tasks N] [--clients N,N] [--partitions N,N] [--backlog N] [--kind KIND] [--processes]

Each client has a database object of its own, as a process has: its own session, line and combined calls. It
puts, takes and acks one task at a time, in a thread, or with --processes in a process. The backlog stands
before that, and stays. The numbers are counts, which a busy machine does not change. Commits of heartbeats
and sweeps go by time: they are measured at rest, and subtracted.
"""

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.observing import Counters

TAKE_TIMEOUT_S = 300.0
REST_S = 5.0
_gates: list[Any] = []
"""The barrier of all clients, in each process."""


@dataclass(frozen=True)
class Plan:
    url: str
    prefix: bytes
    clients: int
    tasks: int
    rest_s: float

    @property
    def root(self) -> Subspace:
        return Subspace(rawPrefix=self.prefix)

    def tasks_of(self, client: int) -> range:
        return range(client, self.tasks, self.clients)


@dataclass(frozen=True)
class Each:
    """The counts for one task, of all clients together."""

    commits: float
    conflicts: float
    retries: float


def counts(
    url: str,
    clients: int,
    partitions: int,
    tasks: int,
    backlog: int = 0,
    kind: str = "fifo",
    *,
    as_processes: bool = False,
    rest_s: float = REST_S,
) -> Each:
    plan = Plan(url, Subspace(("fdbqueue-benchmark", os.urandom(8).hex())).key(), clients, tasks, rest_s)
    with fdbqueue.open(url, create=True) as db:
        try:
            queue = fdbqueue.TaskQueue.create(db, "q", kind, root=plan.root, partitions=partitions)
            for task in range(backlog):  # one at a time: each goes to the next partition
                queue.put(db, task)
            with _executor(clients, as_processes) as executor:
                found = list(executor.map(_count, [plan] * clients, range(clients)))
            return _together(found, tasks)
        finally:
            db.clear_range_startswith(plan.prefix)


def _executor(clients: int, as_processes: bool) -> Executor:
    """One thread or process for each client: all of them wait at one gate."""
    if not as_processes:
        return ThreadPoolExecutor(clients, initializer=_meet_at, initargs=(threading.Barrier(clients),))
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(clients)
    return ProcessPoolExecutor(clients, mp_context=context, initializer=_meet_at, initargs=(gate,))


def _meet_at(gate: Any) -> None:
    _gates[:] = [gate]


def _count(plan: Plan, client: int) -> Counters:
    """Do the tasks of one client, and return the growth of its counters, without that of its rest."""
    with fdbqueue.open(plan.url) as db:
        queue = fdbqueue.TaskQueue.open(db, "q", root=plan.root)
        _begin_session(db, queue)
        _gates[0].wait()
        rest = _growth(db, lambda: time.sleep(plan.rest_s))
        began = time.monotonic()
        grown = _growth(db, lambda: _work(db, queue, plan.tasks_of(client)))
        rests = (time.monotonic() - began) / plan.rest_s if plan.rest_s else 0
        _gates[0].wait()  # a session that ends gives its homes to others
        return Counters(**{name: round(count - rests * rest[name]) for name, count in grown.items()})


def _begin_session(db: fdbqueue.Database, queue: fdbqueue.TaskQueue) -> None:
    """The first take of a process begins its session, whose heartbeats belong to the rest."""
    task = queue.take(db, 0)
    if task is not None:
        queue.release(db, task)


def _growth(db: fdbqueue.Database, act: Any) -> dict[str, int]:
    before = asdict(db.counters)
    act()
    return {name: count - before[name] for name, count in asdict(db.counters).items()}


def _work(db: fdbqueue.Database, queue: fdbqueue.TaskQueue, tasks: range) -> None:
    for task in tasks:
        queue.put(db, task)
        taken = queue.take(db, TAKE_TIMEOUT_S)
        assert taken is not None, "each client takes no more than it has put"
        queue.ack(db, taken)


def _together(found: Sequence[Counters], tasks: int) -> Each:
    return Each(
        sum(one.commits for one in found) / tasks,
        sum(one.conflicts for one in found) / tasks,
        sum(one.retries for one in found) / tasks,
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--tasks", type=int, default=3200)
    parser.add_argument("--clients", type=_numbers, default=[4, 16, 64])
    parser.add_argument("--partitions", type=_numbers, default=[1, 16])
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("--kind", default="fifo")
    parser.add_argument("--processes", action="store_true", help="each client is a process")
    asked = parser.parse_args()
    print(f"{'clients':>8}{'partitions':>12}{'commits':>10}{'conflicts':>11}{'retries':>9}")
    for clients in asked.clients:
        for partitions in asked.partitions:
            each = counts(
                asked.url,
                clients,
                partitions,
                asked.tasks,
                asked.backlog,
                asked.kind,
                as_processes=asked.processes,
            )
            print(
                f"{clients:8}{partitions:12}{each.commits:10.2f}{each.conflicts:11.3f}{each.retries:9.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
