"""PersistentQueue beside persist-queue's SQLiteAckQueue: python -m benchmarks.persistent [--quick]

Both in one directory, at equal durability: with an fsync for every commit (what SQLite does by default, and
`embedded:`), and without (`PRAGMA synchronous=OFF`, and `memory:`). One operation is a put, a get and an ack,
on a queue in which a hundred items wait; or a put alone. Threads share one queue object.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import persistqueue

import fdbqueue
from benchmarks.measure import Operation, Row, compare, table, threaded_rate

VALUE = "v" * 20
WAITING = 100
THEIRS, OURS = "persist-queue", "fdbqueue"
WANTED = 1.0

Measures = dict[str, Callable[[], float]]
Open = Callable[[], Any]
"""A fresh queue."""


@dataclass(frozen=True)
class Plan:
    seconds: float
    rounds: int
    threads: tuple[int, ...]

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(0.3, 1, (1, 4)) if quick else cls(1.0, 5, (1, 4, 16))


def theirs(directory: Path, durable: bool) -> Open:
    numbers = count()

    def fresh() -> Any:
        queue: Any = persistqueue.SQLiteAckQueue(
            str(directory / f"theirs-{next(numbers)}"), multithreading=True
        )
        queue._putter.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        return queue

    return fresh


@contextmanager
def ours(directory: Path, durable: bool) -> Iterator[Open]:
    numbers = count()
    with fdbqueue.open(f"embedded:{directory / 'ours'}" if durable else "memory:") as db:
        yield lambda: fdbqueue.PersistentQueue(db, f"ours-{next(numbers)}")


def cycle(queue: Any) -> Operation:
    def operation() -> None:
        queue.put(VALUE)
        queue.ack(queue.get())

    return operation


def put(queue: Any) -> Operation:
    return lambda: queue.put(VALUE)


def measured(fresh: Open, what: Callable[[Any], Operation], threads: int, plan: Plan) -> float:
    """Operations a second of `threads` threads together, on a queue of its own."""
    queue = fresh()
    for _ in range(WAITING):
        queue.put(VALUE)
    operation = what(queue)
    try:
        return threaded_rate(lambda _: operation, threads, plan.seconds)
    finally:
        queue.close()


def rows(queues: dict[str, Open], plan: Plan) -> Iterator[Row]:
    for name, what in (("put + get + ack", cycle), ("put", put)):
        for threads in plan.threads:
            measures: Measures = {
                who: partial(measured, fresh, what, threads, plan) for who, fresh in queues.items()
            }
            found = compare(measures, THEIRS, plan.rounds)
            yield Row(f"{THEIRS}: {name}, {threads} threads", found[THEIRS].per_second)
            yield Row(f"{OURS}: {name}, {threads} threads", found[OURS].per_second, found[OURS].ratio, WANTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    plan = Plan.of(parser.parse_args().quick)
    for durable in (True, False):
        with tempfile.TemporaryDirectory() as directory, ours(Path(directory), durable) as our_queue:
            queues = {THEIRS: theirs(Path(directory), durable), OURS: our_queue}
            print(table(f"{'with' if durable else 'without'} fsync", list(rows(queues, plan))))


if __name__ == "__main__":
    main()
