"""What keys cost: python -m benchmarks.keys [--url URL] [--quick] [--million]

Puts, and takes with their acks, of one client of micro and fair queues with ever more keys waiting, in turn
with a plain fifo that holds as many tasks, and as a ratio to it; --million adds 10,000 keys with 100 tasks
each, and to 1,000,000 keys. Then 64 workers on 1,000 keys, each in a session of its own, and their conflicts.
Without --url: the embedded engine in memory, no fsync.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import fdbqueue
from benchmarks.fresh import fresh_queue, leaving_nothing
from benchmarks.measure import Operation, Row, compare, rate, table, threaded_rate
from benchmarks.tasks import VALUE, Measures, taking
from fdbqueue import Database, Session, TaskQueue

PLAIN, KINDS = "fifo", ("utube", "fair")
FILLED_TOGETHER = 200
COST_WANTED = FLAT_WANTED = 0.5


@dataclass(frozen=True)
class Waiting:
    """The contents of the queue before the measurement."""

    keys: int
    tasks_each: int = 1

    def __str__(self) -> str:
        return f"{self.keys:,} keys" + (f" x {self.tasks_each} tasks" if self.tasks_each > 1 else "")


@dataclass(frozen=True)
class Plan:
    seconds: float
    rounds: int
    waiting: tuple[Waiting, ...]
    workers: int
    crowd: Waiting

    @classmethod
    def of(cls, quick: bool, million: bool) -> "Plan":
        if quick:
            return cls(0.3, 1, (Waiting(1), Waiting(100)), 8, Waiting(50, 40))
        large = (Waiting(10_000, 100), Waiting(1_000_000)) if million else ()
        waiting = (Waiting(1), Waiting(100), Waiting(10_000), *large)
        return cls(1.0, 5, waiting, 64, Waiting(1_000, 100))


def fill(db: Database, queue: TaskQueue, waiting: Waiting, tasks_min: int = 0) -> None:
    """The waiting tasks, at least `tasks_min`."""

    @fdbqueue.transactional
    def put(tr: fdbqueue.Transaction, numbers: range) -> None:
        for number in numbers:
            queue.put(tr, VALUE, key=number % waiting.keys)

    if waiting.tasks_each == 1:
        for start in range(0, max(waiting.keys, tasks_min), FILLED_TOGETHER):
            put(db, range(start, start + FILLED_TOGETHER))
    else:
        for key in range(waiting.keys):
            queue.put_many(db, [VALUE] * waiting.tasks_each, key=key)


def fill_plain(db: Database, queue: TaskQueue, tasks: int) -> None:
    for start in range(0, tasks, FILLED_TOGETHER):
        queue.put_many(db, [VALUE] * min(FILLED_TOGETHER, tasks - start))


def putting(db: Database, queue: TaskQueue, keys: int) -> Operation:
    numbers = count()
    return lambda: queue.put(db, VALUE, key=next(numbers) % keys)


def with_keys(db: Database, plan: Plan, waiting: Waiting) -> tuple[list[Row], list[Row]]:
    """Rates of putting, and of taking and acking."""
    enough = round(plan.seconds * plan.rounds * 6_000)
    plain = fresh_queue(db, PLAIN)
    fill_plain(db, plain, max(enough, waiting.keys * waiting.tasks_each))
    takes: Measures = {PLAIN: partial(rate, taking(db, plain, 1), plan.seconds)}
    puts: Measures = {PLAIN: partial(rate, lambda: plain.put(db, VALUE), plan.seconds)}
    for kind in KINDS:
        queue = fresh_queue(db, kind)
        fill(db, queue, waiting, enough)
        takes[kind] = partial(rate, taking(db, queue, 1), plan.seconds)
        puts[kind] = partial(rate, putting(db, queue, waiting.keys), plan.seconds)
    return _rows(puts, plan), _rows(takes, plan)


def _rows(measures: Measures, plan: Plan) -> list[Row]:
    rows = compare(measures, PLAIN, plan.rounds).values()
    return [Row(row.name, row.per_second, row.ratio, COST_WANTED) for row in rows]


def flat(rows: Sequence[tuple[Waiting, Row]]) -> list[Row]:
    """What plain fifo is matched by, with more and more keys, against the first of `rows`."""
    first = rows[0][1].ratio or 1.0
    return [
        Row(f"{row.name}, {waiting}", row.per_second, (row.ratio or 0.0) / first, FLAT_WANTED)
        for waiting, row in rows
    ]


class Crowd:
    """Workers with sessions of their own at one queue; their takes do not combine."""

    def __init__(self, db: Database, plan: Plan, kind: str) -> None:
        self._db, self._plan = db, plan
        self._queue = fresh_queue(db, kind)
        self.acks = self.conflicts = 0
        if kind == PLAIN:
            fill_plain(db, self._queue, plan.crowd.keys * plan.crowd.tasks_each)
        else:
            fill(db, self._queue, plan.crowd)

    def rate(self) -> float:
        """Tasks taken and acked per second, of all together."""
        sessions = [Session(self._db) for _ in range(self._plan.workers)]
        acks, conflicts = self._acked(), self._db.counters.conflicts
        per_second = threaded_rate(
            lambda n: self._working(sessions[n]), len(sessions), 3 * self._plan.seconds
        )
        self.acks += self._acked() - acks
        self.conflicts += self._db.counters.conflicts - conflicts
        for session in sessions:
            session.end()
        return per_second

    def _acked(self) -> int:
        return self._queue.statistics(self._db)["calls"]["ack"]

    def _working(self, session: Session) -> Operation:
        def operation() -> None:
            task = self._queue.take(self._db, 1, session=session)
            if task is not None:
                self._queue.ack(self._db, task)

        return operation


def crowded(db: Database, plan: Plan) -> list[Row]:
    crowds = {kind: Crowd(db, plan, kind) for kind in (PLAIN, *KINDS)}
    rows = compare({kind: crowd.rate for kind, crowd in crowds.items()}, PLAIN, plan.rounds)
    return [
        Row(
            f"{kind}, {crowd.conflicts / max(crowd.acks, 1):.2f} conflicts each",
            row.per_second,
            row.ratio,
            COST_WANTED,
        )
        for (kind, crowd), row in zip(crowds.items(), rows.values(), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--million", action="store_true")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.quick, arguments.million)
    with leaving_nothing(arguments.url), fdbqueue.open(arguments.url) as db:
        measured = {waiting: with_keys(db, plan, waiting) for waiting in plan.waiting}
        for number, what in enumerate(("put", "take + ack")):
            for waiting, tables in measured.items():
                print(table(f"{what}, {waiting}", tables[number]))
            for kind in KINDS:
                rows = [
                    (waiting, row) for waiting, t in measured.items() for row in t[number] if row.name == kind
                ]
                print(table(f"{what}, as far as it is flat", flat(rows)))
        title = f"{plan.workers} workers in sessions of their own, take + ack, {plan.crowd}"
        print(table(title, crowded(db, plan)))


if __name__ == "__main__":
    main()
