"""What keys cost: python -m benchmarks.keys [--url URL] [--quick]

Puts, and takes with their acks, of one client of micro and fair queues with ever more keys waiting, in turn
with a plain fifo, and as a ratio to it. Without --url: the embedded engine in memory, no fsync.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from itertools import count

import fdbqueue
from benchmarks.measure import Operation, Row, compare, rate, table
from benchmarks.tasks import VALUE, Measures, Names, taking
from fdbqueue import Database, TaskQueue

PLAIN, KINDS = "fifo", ("utube", "fair")
FILLED_TOGETHER = 200
WANTED = 0.5


@dataclass(frozen=True)
class Plan:
    seconds: float
    rounds: int
    keys: tuple[int, ...]

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(0.3, 1, (1, 100)) if quick else cls(1.0, 3, (1, 100, 10_000, 1_000_000))


def fill(db: Database, queue: TaskQueue, keys: int, tasks: int) -> None:
    """`tasks` tasks at least, one of each key at least."""

    @fdbqueue.transactional
    def put(tr: object, numbers: range) -> None:
        for number in numbers:
            queue.put(tr, VALUE, key=number % keys)

    for start in range(0, max(keys, tasks), FILLED_TOGETHER):
        put(db, range(start, start + FILLED_TOGETHER))


def putting(db: Database, queue: TaskQueue, keys: int) -> Operation:
    numbers = count()
    return lambda: queue.put(db, VALUE, key=next(numbers) % keys)


def with_keys(db: Database, plan: Plan, keys: int) -> tuple[list[Row], list[Row]]:
    """Rates of putting, and of taking and acking."""
    names = Names(db)
    enough = round(plan.seconds * plan.rounds * 6_000)
    plain = names.queue(PLAIN)
    for start in range(0, enough, FILLED_TOGETHER):
        plain.put_many(db, [VALUE] * min(FILLED_TOGETHER, enough - start))
    takes: Measures = {PLAIN: partial(rate, taking(db, plain, 1), plan.seconds)}
    puts: Measures = {PLAIN: partial(rate, lambda: plain.put(db, VALUE), plan.seconds)}
    for kind in KINDS:
        queue = names.queue(kind)
        fill(db, queue, keys, enough)
        takes[kind] = partial(rate, taking(db, queue, 1), plan.seconds)
        puts[kind] = partial(rate, putting(db, queue, keys), plan.seconds)
    return _rows(puts, plan), _rows(takes, plan)


def _rows(measures: Measures, plan: Plan) -> list[Row]:
    rows = compare(measures, PLAIN, plan.rounds).values()
    return [Row(row.name, row.per_second, row.ratio, WANTED) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.quick)
    with fdbqueue.open(arguments.url) as db:
        for keys in plan.keys:
            puts, takes = with_keys(db, plan, keys)
            print(table(f"put, {keys:,} keys", puts))
            print(table(f"take + ack, {keys:,} keys", takes))


if __name__ == "__main__":
    main()
