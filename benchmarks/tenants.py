"""The cost of a hot tenant for the small ones: python -m benchmarks.tenants [--url URL] [--quick] [--plot
PNG]

Each of 100 tenants of a fair queue puts 50 tasks; workers take and ack until all of these are done. The
wait of a task, in turn without and with one more tenant that has 1,000,000 waiting tasks. Without --url:
the embedded engine in memory, no fsync.
"""

import argparse
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import fdbqueue
from benchmarks.fresh import fresh_queue, leaving_nothing
from fdbqueue import Database, Session, TaskQueue

HOT = "hot"
ALONE, BESIDE = "without the hot tenant", "beside the hot tenant"
TOGETHER = 500
RATIO_WANTED = 1.2

Waits = list[list[float]]
"""Of the n-th task of each tenant, how many seconds each has waited."""


@dataclass(frozen=True)
class Plan:
    tenants: int
    tasks_each: int
    hot: int
    workers: int
    rounds: int

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(20, 10, 2_000, 2, 1) if quick else cls(100, 50, 1_000_000, 4, 5)


@dataclass
class Seen:
    """The waits of each round, by the presence of the hot tenant."""

    rounds: dict[str, list[Waits]] = field(default_factory=lambda: {ALONE: [], BESIDE: []})

    def quantile(self, who: str, number: int, quantile: float) -> float:
        ordered = sorted(wait for waits in self.rounds[who][number] for wait in waits)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    def ratio(self, quantile: float) -> float:
        """The median of the rounds' ratios."""
        numbers = range(len(self.rounds[ALONE]))
        return statistics.median(
            self.quantile(BESIDE, n, quantile) / self.quantile(ALONE, n, quantile) for n in numbers
        )

    def medians(self, who: str) -> list[float]:
        """Over all rounds, of the first, second, ... task of a tenant."""
        return [
            statistics.median(wait for waits in places for wait in waits)
            for places in zip(*self.rounds[who], strict=True)
        ]


def fill(db: Database, queue: TaskQueue, tasks: int) -> None:
    for start in range(0, tasks, TOGETHER):
        queue.put_many(db, [None] * min(TOGETHER, tasks - start), key=HOT)


def put_small(db: Database, queue: TaskQueue, plan: Plan) -> None:
    """The first task of each, then the second of each: as many tenants put them, at one time."""

    @fdbqueue.transactional
    def put(tr: fdbqueue.Transaction, number: int) -> None:
        for tenant in range(plan.tenants):
            queue.put(tr, number, key=tenant)

    for number in range(plan.tasks_each):
        put(db, number)


def waits(db: Database, queue: TaskQueue, plan: Plan) -> Waits:
    put_small(db, queue, plan)
    seen: Waits = [[] for _ in range(plan.tasks_each)]
    left = threading.Semaphore(0)
    done = threading.Event()

    def work(session: Session) -> None:
        while not done.is_set():
            task = queue.take(db, 0.1, session=session)
            if task is None:
                continue
            if task.key != HOT:
                seen[task.data].append(time.perf_counter() - began)
                left.release()
            queue.ack(db, task)

    sessions = [Session(db) for _ in range(plan.workers)]
    workers = [threading.Thread(target=work, args=(session,), daemon=True) for session in sessions]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for _ in range(plan.tenants * plan.tasks_each):
        left.acquire()
    done.set()
    for worker in workers:
        worker.join()
    for session in sessions:
        session.end()
    return seen


def measured(db: Database, plan: Plan) -> Seen:
    seen = Seen()
    queues = {ALONE: fresh_queue(db, "fair"), BESIDE: fresh_queue(db, "fair")}
    fill(db, queues[BESIDE], plan.hot)
    for _ in range(plan.rounds):
        for who, queue in queues.items():
            seen.rounds[who].append(waits(db, queue, plan))
    return seen


def report(seen: Seen, plan: Plan) -> str:
    lines = [f"\n{plan.tenants} tenants with {plan.tasks_each} tasks each, a hot one with {plan.hot:,}"]
    for quantile, name in ((0.5, "p50"), (0.99, "p99")):
        alone, beside = (
            statistics.median(seen.quantile(who, n, quantile) for n in range(plan.rounds))
            for who in (ALONE, BESIDE)
        )
        ratio = seen.ratio(quantile)
        verdict = "ok" if ratio <= RATIO_WANTED else "ABOVE"
        lines.append(
            f"{name}: {alone:6.2f} s {ALONE}, {beside:6.2f} s {BESIDE}: "
            f"ratio {ratio:.2f}, wanted {RATIO_WANTED} {verdict}"
        )
    return "\n".join(lines)


def plot(seen: Seen, path: Path) -> str:
    """The wait of a tenant's n-th task; what to say of it."""
    try:
        import matplotlib
    except ImportError:
        return "no plot without matplotlib: pip install 'fdbqueue[bench]'"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for who in (ALONE, BESIDE):
        medians = seen.medians(who)
        axes.plot(range(1, len(medians) + 1), medians, label=who)
    axes.set_xlabel("place in its tenant's line")
    axes.set_ylabel("seconds that a task waits (median)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    return f"plotted to {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    plan = Plan.of(arguments.quick)
    with leaving_nothing(arguments.url), fdbqueue.open(arguments.url) as db:
        seen = measured(db, plan)
    print(report(seen, plan))
    if arguments.plot is not None:
        print(plot(seen, arguments.plot))


if __name__ == "__main__":
    main()
