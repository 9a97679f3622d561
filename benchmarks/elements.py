"""Element queues beside dirq and persist-queue: python -m benchmarks.elements [--quick]

Every contender adds a number of elements and takes them out again, in turn, round by round, once with its
data on the disk before a call returns and once without. One thread; and eight, for those that allow it. A
ratio is ours to theirs: the median of the rounds' ratios. Element queues lie in the embedded engine, in a
directory (durable) or in memory: (without fsync), everything else beside them in the same temporary
directory.

A contender is a name, and a function that makes its two operations; add more to CONTENDERS.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import persistqueue
from dirq.queue import Queue as DirectoryQueue
from dirq.QueueSimple import QueueSimple
from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.measure import Operation, Row, table

BODY = "v" * 20
SCHEMA = {"body": "string"}
_numbers = count()


@dataclass(frozen=True)
class Plan:
    durable: int
    volatile: int
    rounds: int
    threads: int = 8

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(10, 50, 1) if quick else cls(60, 1_000, 9)


@dataclass(frozen=True)
class Pair:
    """One thread's operations: `take` removes the element that it reads."""

    add: Operation
    take: Operation


@dataclass(frozen=True)
class Place:
    """The directory of the contenders, and the stack that closes them."""

    folder: Path
    durable: bool
    closing: ExitStack

    def fresh(self) -> Path:
        return self.folder / f"{next(_numbers)}"

    def database(self) -> fdbqueue.Database:
        url = f"embedded:{self.fresh()}" if self.durable else "memory:"
        return self.closing.enter_context(fdbqueue.open(url))


Make = Callable[[Place], Callable[[], Pair]]
"""Makes a queue at the place; the returned function makes the operations of one more thread."""


# -- ours ----------------------------------------------------------------------------------------------


def element_queue(place: Place) -> Callable[[], Pair]:
    """Lock, get, remove: three transactions, as a consumer's of dirq are three steps."""
    db = place.database()

    def pair() -> Pair:
        queue = fdbqueue.ElementQueue(Subspace(("elements",)), schema=SCHEMA)

        def use(name: str) -> bool:
            if not queue.lock(db, name):
                return False
            queue.get(db, name)
            queue.remove(db, name)
            return True

        return Pair(lambda: queue.add(db, {"body": BODY}), taking(lambda: queue.names(db), use))

    return pair


def element_queue_at_once(place: Place) -> Callable[[], Pair]:
    """The same in one transaction, which may be the caller's own."""
    db = place.database()

    def pair() -> Pair:
        queue = fdbqueue.ElementQueue(Subspace(("elements",)), schema=SCHEMA)

        def use(name: str) -> bool:
            try:
                queue.dequeue(db, name)
            except fdbqueue.FdbQueueError:
                return False
            return True

        return Pair(lambda: queue.add(db, {"body": BODY}), taking(lambda: queue.names(db), use))

    return pair


def simple_queue(place: Place) -> Callable[[], Pair]:
    db = place.database()

    def pair() -> Pair:
        queue = fdbqueue.SimpleElementQueue(Subspace(("simple",)))

        def use(name: str) -> bool:
            if not queue.lock(db, name):
                return False
            queue.get(db, name)
            queue.remove(db, name)
            return True

        return Pair(lambda: queue.add(db, BODY), taking(lambda: queue.names(db), use))

    return pair


# -- theirs --------------------------------------------------------------------------------------------


def dirq(place: Place) -> Callable[[], Pair]:
    path = str(place.fresh())
    return lambda: _of_dirq(DirectoryQueue(path, schema=SCHEMA), {"body": BODY}, place.durable)


def dirq_simple(place: Place) -> Callable[[], Pair]:
    path = str(place.fresh())
    return lambda: _of_dirq(QueueSimple(path), BODY, place.durable)


def _of_dirq(queue: Any, data: Any, durable: bool) -> Pair:
    """dirq never syncs. A durable one has to be made: with what its files need, and not a sync more."""

    def add() -> None:
        name = queue.add(data)
        if durable:
            place = Path(queue.path, name)
            sync(place / "body", place, place.parent) if place.is_dir() else sync(place, place.parent)

    def use(name: str) -> bool:
        if not queue.lock(name):
            return False
        queue.get(name)
        queue.remove(name)
        if durable:
            sync(Path(queue.path, name).parent)
        return True

    # A list: the queue is its own iterator, and would begin anew for every element.
    return Pair(add, taking(lambda: iter(list(queue)), use))


def file_queue(place: Place) -> Callable[[], Pair]:
    """One queue for all threads. It syncs nothing but a chunk of items at its end, which never comes here."""
    path = place.fresh()
    queue = persistqueue.Queue(str(path), chunksize=10**9, tempdir=str(place.folder))

    def put() -> None:
        queue.put(BODY)
        if place.durable:
            os.fsync(queue.headf.fileno())
            sync(path / "info", path)

    def take() -> None:
        queue.get(block=False)
        queue.task_done()
        if place.durable:
            sync(path / "info", path)

    return lambda: Pair(put, take)


def sqlite_queue(place: Place) -> Callable[[], Pair]:
    queue = persistqueue.SQLiteQueue(str(place.fresh()), auto_commit=True, multithreading=True)
    _set_synchronous(queue, place.durable)
    return lambda: Pair(lambda: queue.put(BODY), lambda: queue.get(block=False))


def sqlite_ack_queue(place: Place) -> Callable[[], Pair]:
    queue = persistqueue.SQLiteAckQueue(str(place.fresh()), auto_commit=True, multithreading=True)
    _set_synchronous(queue, place.durable)
    return lambda: Pair(lambda: queue.put(BODY), lambda: queue.ack(queue.get(block=False)))


def _set_synchronous(queue: Any, durable: bool) -> None:
    for connection in {queue._putter, queue._getter}:
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")


def sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


OURS: dict[str, Make] = {
    "ElementQueue, lock-get-remove": element_queue,
    "ElementQueue, dequeue": element_queue_at_once,
    "SimpleElementQueue, lock-get-remove": simple_queue,
}
CONTENDERS: dict[str, dict[str, Make]] = {
    "ElementQueue, lock-get-remove": {
        "dirq, Queue": dirq,
        "persist-queue, Queue": file_queue,
        "persist-queue, SQLiteAckQueue": sqlite_ack_queue,
    },
    "ElementQueue, dequeue": {
        "dirq, Queue": dirq,
        "persist-queue, Queue": file_queue,
        "persist-queue, SQLiteQueue": sqlite_queue,
    },
    "SimpleElementQueue, lock-get-remove": {"dirq, QueueSimple": dirq_simple},
}
"""Beside which of ours each of theirs is shown."""


# -- measuring -----------------------------------------------------------------------------------------


def taking(names: Callable[[], Iterator[str]], use: Callable[[str], bool]) -> Operation:
    """One more element that can be locked; a pass goes on from one call to the next."""
    waiting: list[Iterator[str]] = [iter(())]

    def take() -> None:
        for name in waiting[0]:
            if use(name):
                return
        waiting[0] = names()
        if not any(use(name) for name in waiting[0]):
            raise RuntimeError("there is nothing to take: this rate would be that of nothing")

    return take


def together(operations: Sequence[Operation], times: int) -> float:
    """Operations a second, of one thread each, `times` in all."""
    gate = threading.Barrier(len(operations) + 1)

    def work(operation: Operation) -> None:
        gate.wait()
        for _ in range(times // len(operations)):
            operation()

    threads = [threading.Thread(target=work, args=(operation,)) for operation in operations]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return times // len(operations) * len(operations) / (time.perf_counter() - began)


Rates = dict[str, list[tuple[float, float]]]


def measured(makes: dict[str, Make], place: Place, times: int, threads: int, rounds: int) -> Rates:
    """The rates of adding and taking in each round, all contenders in turn."""
    pairs = {name: [pair() for _ in range(threads)] for name, pair in made(makes, place)}
    seen: Rates = {name: [] for name in makes}
    for _ in range(rounds):
        for name, each in pairs.items():
            adds, takes = [pair.add for pair in each], [pair.take for pair in each]
            seen[name].append((together(adds, times), together(takes, times)))
    return seen


def made(makes: dict[str, Make], place: Place) -> Iterator[tuple[str, Callable[[], Pair]]]:
    for name, make in makes.items():
        yield name, make(place)


def compared(seen: Rates) -> Iterator[Row]:
    for ours, theirs in CONTENDERS.items():
        for verb, at in (("add", 0), ("take", 1)):
            mine = [rates[at] for rates in seen[ours]]
            yield Row(f"{ours}: {verb}", statistics.median(mine))
            for name in theirs:
                other = [rates[at] for rates in seen[name]]
                ratio = statistics.median(a / b for a, b in zip(mine, other, strict=True))
                yield Row(f"    {name}: {verb}", statistics.median(other), ratio, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs")
    plan = Plan.of(parser.parse_args().quick)
    makes = OURS | {name: make for theirs in CONTENDERS.values() for name, make in theirs.items()}
    for durable, times in ((True, plan.durable), (False, plan.volatile)):
        for threads in (1, plan.threads):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
                place = Place(Path(folder), durable, closing)
                seen = measured(makes, place, times, threads, plan.rounds)
            title = f"{'Durable' if durable else 'Without fsync'}, {threads} thread(s)"
            print(table(title, list(compared(seen))), flush=True)


if __name__ == "__main__":
    main()
