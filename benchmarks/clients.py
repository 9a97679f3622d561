"""Clients of a benchmark: worker processes that are started once and told what to measure.

The parent measures nothing itself. "8 threads" is one worker with eight threads, "8 processes" eight workers
with one each. A run that finds the queue dry ends there, and its time with it.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue

_VALUE = "v" * 20
_DRY = object()


@dataclass
class Result:
    """What clients did, together: a rate, the time each operation took, the conflicts on the way."""

    operations: int = 0
    seconds: float = 0.0
    conflicts: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0

    @property
    def conflicts_each(self) -> float:
        return self.conflicts / self.operations if self.operations else 0.0

    def latency_ms(self, quantile: float) -> float:
        ordered = sorted(self.latencies_s) or [0.0]
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] * 1000

    @classmethod
    def together(cls, parts: list["Result"]) -> "Result":
        return cls(
            sum(part.operations for part in parts),
            max(part.seconds for part in parts),
            sum(part.conflicts for part in parts),
            [latency for part in parts for latency in part.latencies_s],
        )


class Client:
    """The operations that are measured, on one database; shared by its threads."""

    def __init__(self, database: fdbqueue.Database, space: Subspace) -> None:
        self.database = database
        self._space = space
        self._root = space["root"]

    def operation(self, what: str, thread: int) -> Callable[[], object]:
        """One of raw, enqueue-KIND, dequeue-KIND: called again and again; returns _DRY for nothing there."""
        if what == "raw":
            key = self._space["raw"].pack((multiprocessing.current_process().name, thread))
            return lambda: self._raw(key)
        verb, kind = what.split("-")
        queue = self.queue(kind)
        if verb == "enqueue":
            return lambda: queue.enqueue(self.database, _VALUE)
        return lambda: queue.dequeue(self.database, _DRY)

    def queue(self, kind: str) -> fdbqueue.Queue:
        return fdbqueue.Queue(self._space["queue"], contended=kind, root=self._root)

    def conflicts(self) -> int:
        return self.database.counters.conflicts

    def _raw(self, key: bytes) -> None:
        """The unit of comparison: one key read and written in one transaction, without conflicts."""
        tr = self.database.create_transaction()
        tr.get(key).wait()
        tr.set(key, b"v" * 20)
        tr.commit().wait()


def measure(client: Client, what: str, threads: int, seconds: float) -> Result:
    """`threads` threads do `what` for `seconds`, or until there is nothing left."""
    gate = threading.Barrier(threads)
    results = [Result() for _ in range(threads)]

    def work(number: int) -> None:
        operation = client.operation(what, number)
        gate.wait()
        marks = [time.perf_counter()]
        deadline = marks[0] + seconds
        while marks[-1] < deadline and operation() is not _DRY:
            marks.append(time.perf_counter())
        latencies = [end - start for start, end in pairwise(marks)]
        results[number] = Result(len(latencies), marks[-1] - marks[0], 0, latencies)

    before = client.conflicts()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = Result.together(results)
    total.conflicts = client.conflicts() - before
    return total


def _serve(url: str, space: Subspace, orders: Connection) -> None:
    with fdbqueue.open(url) as database:
        client = Client(database, space)
        orders.send("ready")
        while (order := orders.recv()) is not None:
            what, threads, seconds, start = order
            time.sleep(max(0.0, start - time.monotonic()))
            orders.send(measure(client, what, threads, seconds))


class Clients:
    """The worker processes; a context manager that ends them."""

    def __init__(self, url: str, space: Subspace) -> None:
        self._url = url
        self._space = space
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Connection]] = []

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *exc: object) -> None:
        for _, orders in self._workers:
            orders.send(None)
        for process, _ in self._workers:
            process.join()

    def run(self, what: str, processes: int, threads: int, seconds: float) -> Result:
        """Let `processes` workers with `threads` threads each do `what` at the same time."""
        self._hire(processes)
        chosen = [orders for _, orders in self._workers[:processes]]
        start = time.monotonic() + 0.05 + processes * 0.002
        for orders in chosen:
            orders.send((what, threads, seconds, start))
        return Result.together([orders.recv() for orders in chosen])

    def _hire(self, count: int) -> None:
        new = [self._start() for _ in range(count - len(self._workers))]
        for _, orders in new:
            orders.recv()
        self._workers += new

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._url, self._space, theirs), daemon=True)
        process.start()
        return process, ours
