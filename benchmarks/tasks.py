"""Task queues against raw one-key transactions: python -m benchmarks.tasks [--url URL] [--quick]

Every rate is measured in turn with raw transactions (read a key, set it, commit) by as many threads, and
quoted as a ratio to them. Without --url: the embedded engine in memory, no fsync.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import fdbqueue
from benchmarks.fresh import SPACE, fresh_queue, leaving_nothing
from benchmarks.measure import Operation, Row, compare, rate, table, threaded_rate
from fdbqueue import Database, Session, TaskQueue

Measures = dict[str, Callable[[], float]]

VALUE = "v" * 20
BATCH = 50
FEED = 10
PUTS_WANTED, TAKES_WANTED = 5_000, 4_000
FLAT_WITHIN = 1.5


@dataclass(frozen=True)
class Plan:
    """How long to measure what."""

    seconds: float
    rounds: int
    clients: tuple[int, ...]
    waiters: tuple[int, ...]
    wake_ups: int
    backlog: int

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        if quick:
            return cls(0.3, 1, (1, 4), (1, 10), 5, 20_000)
        return cls(1.0, 3, (1, 2, 4, 8, 16, 32, 64), (1, 10, 200), 30, 1_000_000)


def raw(db: Database, thread: int = 0) -> Operation:
    key = SPACE.pack(("raw", thread))

    def operation() -> None:
        tr = db.create_transaction()
        tr.get(key).wait()
        tr.set(key, VALUE.encode())
        tr.commit().wait()

    return operation


def taking(db: Database, queue: TaskQueue, count: int) -> Operation:
    """Take `count` tasks and ack each."""

    def operation() -> None:
        tasks = queue.take_many(db, count)
        assert tasks, "filled with too few"
        for task in tasks:
            queue.ack(db, task)

    return operation


def acking(db: Database, queue: TaskQueue) -> Operation:
    """Ack one task, of those that were taken FEED at a time: as the threads of a worker do."""
    tasks: list[fdbqueue.Task] = []

    def operation() -> None:
        if not tasks:
            tasks.extend(queue.take_many(db, FEED))
            assert tasks, "filled with too few"
        queue.ack(db, tasks.pop())

    return operation


def acking_together(db: Database, queue: TaskQueue) -> Operation:
    """Take BATCH tasks, and ack them in one transaction."""

    @fdbqueue.transactional
    def ack(tr: Any, tasks: list[fdbqueue.Task]) -> None:
        for task in tasks:
            queue.ack(tr, task)

    def operation() -> None:
        tasks = queue.take_many(db, BATCH)
        assert tasks, "filled with too few"
        ack(db, tasks)

    return operation


def fill(db: Database, queue: TaskQueue, count: int, **options: Any) -> None:
    for start in range(0, count, 500):
        queue.put_many(db, [VALUE] * min(500, count - start), **options)


def alone(db: Database, plan: Plan) -> list[Row]:
    puts, takes, batches = fresh_queue(db), fresh_queue(db), fresh_queue(db)
    enough = round(plan.seconds * plan.rounds * 15_000)
    fill(db, takes, enough)
    fill(db, batches, 4 * enough)
    together = acking_together(db, batches)
    operations: dict[str, Operation] = {
        "raw": raw(db),
        "put": lambda: puts.put(db, VALUE),
        "take + ack": taking(db, takes, 1),
    }
    measures: Measures = {
        name: partial(rate, operation, plan.seconds) for name, operation in operations.items()
    }
    measures[f"take_many({BATCH}) + acks together, tasks"] = lambda: BATCH * rate(together, plan.seconds)
    return list(compare(measures, "raw", plan.rounds).values())


def together(db: Database, plan: Plan, clients: int) -> list[Row]:
    puts, takes, fed = fresh_queue(db), fresh_queue(db), fresh_queue(db)
    enough = round(plan.seconds * plan.rounds * 20_000)
    fill(db, takes, enough)
    fill(db, fed, enough + clients * FEED * plan.rounds)
    operations: dict[str, Callable[[int], Operation]] = {
        "raw": lambda number: raw(db, number),
        "put": lambda _: lambda: puts.put(db, VALUE),
        "take + ack": lambda _: taking(db, takes, 1),
        f"ack, taken by {FEED}": lambda _: acking(db, fed),
    }
    measures: Measures = {
        name: partial(threaded_rate, make, clients, plan.seconds) for name, make in operations.items()
    }
    return list(compare(measures, "raw", plan.rounds).values())


@dataclass(frozen=True)
class WakeUp:
    p50_ms: float
    p99_ms: float
    transactions: float


class Counted:
    """A database's transactions, counted."""

    def __init__(self, db: Database) -> None:
        self.count = 0
        create = db.create_transaction

        def counting() -> Any:
            self.count += 1
            return create()

        db.create_transaction = counting  # type: ignore[method-assign]


def waking(db: Database, waiters: int, times: int) -> WakeUp:
    """How long after a put some waiter has the task, each waiter in a session of its own."""
    queue = fresh_queue(db, "fifo")
    arrived: list[float] = []
    came = threading.Event()
    stop = threading.Event()

    def wait(session: Session) -> None:
        while not stop.is_set():
            task = queue.take(db, 1.0 if stop.is_set() else 600.0, session=session)
            if task is None or task.data == "stop":
                return
            arrived.append(time.perf_counter())
            came.set()

    sessions = [Session(db) for _ in range(waiters)]
    threads = [threading.Thread(target=wait, args=(session,), daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    time.sleep(1.0 + waiters * 0.02)
    counted, latencies, transactions = Counted(db), [], []
    for _ in range(times):
        came.clear()
        before, put_at = counted.count, time.perf_counter()
        queue.put(db, "go")
        came.wait(30)
        latencies.append((arrived[-1] - put_at) * 1_000)
        time.sleep(0.1)
        transactions.append(counted.count - before)
    stop.set()
    queue.put_many(db, ["stop"] * waiters)
    for thread in threads:
        thread.join(30)
    del db.create_transaction
    for session in sessions:
        session.end()
    latencies.sort()
    return WakeUp(
        statistics.median(latencies), latencies[int(0.99 * len(latencies))], statistics.median(transactions)
    )


def backlog(db: Database, plan: Plan) -> list[Row]:
    """Put and take+ack on an empty queue, beside a backlog of ready tasks, and beside one of delayed ones."""
    queues = {"empty": fresh_queue(db), "ready": fresh_queue(db), "delayed": fresh_queue(db)}
    fill(db, queues["ready"], plan.backlog)
    fill(db, queues["delayed"], plan.backlog, delay=86_400)

    def work(queue: TaskQueue) -> Operation:
        def operation() -> None:
            queue.put(db, VALUE)
            queue.ack(db, queue.take(db, 0))  # type: ignore[arg-type]  # one has just been put

        return operation

    operations = {name: work(queue) for name, queue in queues.items()}
    measures: Measures = {
        name: partial(rate, operation, plan.seconds) for name, operation in operations.items()
    }
    rows = compare(measures, "empty", plan.rounds).values()
    return [Row(row.name, row.per_second, row.ratio, 1 / FLAT_WITHIN) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.quick)
    with leaving_nothing(arguments.url), fdbqueue.open(arguments.url) as db:
        print(
            table(f"one thread (wanted: {PUTS_WANTED:,} put/s, {TAKES_WANTED:,} take+ack/s)", alone(db, plan))
        )
        for clients in plan.clients:
            print(table(f"{clients} threads", together(db, plan, clients)))
        print("\nfrom a put to the take that waited for it")
        for waiters in plan.waiters:
            woke = waking(db, waiters, plan.wake_ups)
            print(
                f"{waiters:4} waiting sessions: p50 {woke.p50_ms:6.1f} ms, p99 {woke.p99_ms:6.1f} ms, "
                f"{woke.transactions:.0f} transactions a put"
            )
        print(table(f"put + take + ack beside a backlog of {plan.backlog:,}", backlog(db, plan)))


if __name__ == "__main__":
    main()
