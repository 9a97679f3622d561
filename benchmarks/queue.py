"""The recipe queue against raw one-key transactions: python -m benchmarks.queue [--url URL] [--quick]

A rate depends on the machine and its load. So every figure is measured in turn with raw transactions (read
a key, set it, commit) by as many clients, and quoted as a ratio to them.
Without --url: the embedded engine, durable, in a temporary directory. Tables go to
standard output, and with a plot into benchmarks/out/.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.clients import Client, Clients, Result
from benchmarks.measure import Operation, Row, compare, rate, table
from fdbqueue.core import limits

OUT = Path(__file__).parent / "out"
VALUE = "v" * 20
BATCH = 100
# No client takes faster than this; the items that a round enqueues come on top.
TAKEN_PER_SECOND_MAX = 50_000
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
WHAT = ("raw", "enqueue-staged", "dequeue-simple", "dequeue-staged")


@dataclass(frozen=True)
class Plan:
    """How long to measure what."""

    seconds: float
    rounds: int
    clients: tuple[int, ...]

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(0.2, 1, (1, 4)) if quick else cls(1.0, 3, CLIENTS)


@dataclass(frozen=True)
class Point:
    """One number of clients, one thing measured: the median round, and its ratio to raw."""

    layout: str
    clients: int
    what: str
    per_second: float
    ratio: float
    conflicts_each: float
    p50_ms: float
    p99_ms: float


# -- one thread, nothing in its way --------------------------------------------------------------------


def one_thread(url: str, plan: Plan) -> list[Row]:
    """Enqueue and dequeue, one and a hundred a transaction, against raw."""
    space = fresh_space()
    with erased(url, space), fdbqueue.open(url) as database:
        client = Client(database, space)
        queue = client.queue("staged")
        hundred = [VALUE] * BATCH
        raw, enqueue = client.operation("raw", 0), client.operation("enqueue-staged", 0)
        dequeue = client.operation("dequeue-staged", 0)
        measures: dict[str, Callable[[], float]] = {
            "raw, read a key and set it": lambda: rate(raw, plan.seconds),
            "enqueue": lambda: rate(enqueue, plan.seconds),
            f"enqueue_many, {BATCH} a transaction": lambda: (
                BATCH * rate(lambda: queue.enqueue_many(database, hundred), plan.seconds)
            ),
            "dequeue": lambda: rate(never_dry(dequeue), plan.seconds),
            f"dequeue_many, {BATCH} a transaction": lambda: (
                BATCH * rate(full(lambda: queue.dequeue_many(database, BATCH)), plan.seconds)
            ),
        }
        fill(database, queue, int(plan.rounds * plan.seconds * TAKEN_PER_SECOND_MAX))
        rows = compare(measures, "raw, read a key and set it", plan.rounds)
    return list(rows.values())


def never_dry(dequeue: Operation) -> Operation:
    def operation() -> None:
        if not isinstance(dequeue(), str):
            raise RuntimeError("the queue ran dry: this rate would be that of nothing")

    return operation


def full(dequeue_many: Callable[[], list[object]]) -> Operation:
    def operation() -> None:
        if len(dequeue_many()) != BATCH:
            raise RuntimeError("the queue ran dry: this rate would be that of nothing")

    return operation


# -- many clients --------------------------------------------------------------------------------------


def contended(url: str, plan: Plan) -> Iterator[Point]:
    """Every number of clients, as threads and as processes."""
    space = fresh_space()
    with erased(url, space), fdbqueue.open(url) as database, Clients(url, space) as clients:
        backlog = Backlog(database, Client(database, space).queue("staged"))
        for layout in ("threads", "processes"):
            for count in plan.clients:
                yield from points(clients, backlog, layout, count, plan)


def points(clients: Clients, backlog: "Backlog", layout: str, count: int, plan: Plan) -> Iterator[Point]:
    """All that is measured with `count` clients, in turn, round by round."""
    processes, threads = (1, count) if layout == "threads" else (count, 1)
    seen: dict[str, list[Result]] = {what: [] for what in WHAT}
    for _ in range(plan.rounds):
        for what in WHAT:
            backlog.prepare(what, plan.seconds)
            result = clients.run(what, processes, threads, plan.seconds)
            backlog.learn(what, result)
            seen[what].append(result)
    for what, results in seen.items():
        ratios = [
            result.per_second / raw.per_second for result, raw in zip(results, seen["raw"], strict=True)
        ]
        middle = sorted(results, key=lambda result: result.per_second)[len(results) // 2]
        yield Point(
            layout,
            count,
            what,
            middle.per_second,
            statistics.median(ratios),
            middle.conflicts_each,
            middle.latency_ms(0.50),
            middle.latency_ms(0.99),
        )


def fill(database: fdbqueue.Database, queue: fdbqueue.Queue, count: int) -> None:
    for start in range(0, count, limits.BATCH_ITEMS_MAX):
        queue.enqueue_many(database, [VALUE] * min(count - start, limits.BATCH_ITEMS_MAX))


class Backlog:
    """Enough items for the takers."""

    def __init__(self, database: fdbqueue.Database, queue: fdbqueue.Queue) -> None:
        self._database = database
        self._queue = queue
        self._fastest: dict[str, float] = {}

    def prepare(self, what: str, seconds: float) -> None:
        """For a dequeue, twice the number that the last one of this kind would take, if known."""
        wanted = 0
        if what.startswith("dequeue"):
            wanted = int(2 * seconds * self._fastest.get(what, 2_000.0)) + 2 * BATCH
        fill(self._database, self._queue, wanted - self._queue.size(self._database))

    def learn(self, what: str, result: Result) -> None:
        self._fastest[what] = max(self._fastest.get(what, 0.0), result.per_second)


# -- what comes out ------------------------------------------------------------------------------------


def contended_table(layout: str, points: list[Point]) -> str:
    lines = [
        f"\nContended, {layout}",
        f"{'clients':>7}  {'':16}{'per second':>12}{'of raw':>9}{'conflicts':>11}{'p50 ms':>9}{'p99 ms':>9}",
    ]
    return "\n".join([*lines, *map(line_of, points)])


def line_of(point: Point) -> str:
    what = point.what.replace("-", ", ")
    return (
        f"{point.clients:7}  {what:16}{point.per_second:12,.0f}{point.ratio:9.2f}"
        f"{point.conflicts_each:11.2f}{point.p50_ms:9.1f}{point.p99_ms:9.1f}"
    )


def goals_of_one_thread(rows: list[Row]) -> list[Row]:
    """Items without fsync, on two cores: `each` a second, and five times as many by the hundred."""
    _, enqueue, enqueue_many, dequeue, dequeue_many = rows
    return [
        *rows,
        Row("enqueue, one of 10,000/s", enqueue.per_second, enqueue.per_second / 10_000, 1.0),
        Row("dequeue, one of 8,000/s", dequeue.per_second, dequeue.per_second / 8_000, 1.0),
        Row(
            "enqueue_many : enqueue",
            enqueue_many.per_second,
            enqueue_many.per_second / enqueue.per_second,
            5.0,
        ),
        Row(
            "dequeue_many : dequeue",
            dequeue_many.per_second,
            dequeue_many.per_second / dequeue.per_second,
            5.0,
        ),
    ]


def goals(points: list[Point]) -> list[Row]:
    """What staged is for, as far as this run shows it."""
    rates = {(point.layout, point.clients, point.what): point.per_second for point in points}
    counts = sorted({point.clients for point in points})
    alone, most = rates["processes", counts[0], "dequeue-staged"], counts[-1]
    crowd = 32 if 32 in counts else most
    staged = [rates["processes", count, "dequeue-staged"] for count in counts]
    threads = [rates["threads", count, "dequeue-staged"] for count in (counts[0], most)]
    rows = [
        Row(
            f"staged : simple, {crowd} {layout}",
            rates[layout, crowd, "dequeue-staged"],
            rates[layout, crowd, "dequeue-staged"] / rates[layout, crowd, "dequeue-simple"],
            3.0,
        )
        for layout in ("threads", "processes")
    ]
    rows.append(Row(f"staged, {most} threads : 1", threads[1], threads[1] / threads[0], 1.0))
    rows.append(Row("staged, worst number of processes : 1", min(staged), min(staged) / alone, 0.6))
    return rows


def plot(points: list[Point], path: Path) -> str:
    """Rates and conflicts over the number of clients; what to say of it."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no plot without matplotlib: pip install 'fdbqueue[bench]'"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), sharex=True, layout="constrained")
    for column, layout in enumerate(("threads", "processes")):
        for what in WHAT:
            line = [point for point in points if (point.layout, point.what) == (layout, what)]
            counts = [point.clients for point in line]
            label = what.replace("-", ", ")
            axes[0][column].plot(counts, [point.per_second for point in line], marker="o", label=label)
            axes[1][column].plot(counts, [point.p99_ms for point in line], marker="o", label=label)
        axes[0][column].set(title=layout, ylabel="operations per second", xscale="log", yscale="log")
        axes[1][column].set(xlabel="clients", ylabel="p99 latency, ms", xscale="log", yscale="log")
        axes[1][column].set_xticks(counts, map(str, counts))
        axes[0][column].legend()
    figure.savefig(path, dpi=120)
    return f"plot: {path}"


# -- where ---------------------------------------------------------------------------------------------


def fresh_space() -> Subspace:
    return Subspace(("fdbqueue-bench", fdbqueue.RealRuntime().random_bytes(8)))


@contextmanager
def erased(url: str, space: Subspace) -> Iterator[None]:
    """Remove all that lies below `space`, however the block ends."""
    try:
        yield
    finally:
        with fdbqueue.open(url) as database:
            database.clear_range_startswith(space.key())


@contextmanager
def somewhere(url: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fdbqueue-bench-") as folder:
        yield url or f"embedded:{folder}/data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", help="a database that several processes share; default: a temporary directory"
    )
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.quick)
    OUT.mkdir(exist_ok=True)
    with somewhere(arguments.url) as url, (OUT / "queue.txt").open("w") as kept:

        def show(text: str) -> None:
            print(text, flush=True)
            print(text, file=kept)

        if arguments.url is None:
            show(table("One thread, without fsync", goals_of_one_thread(one_thread("memory:", plan))))
        show(table("One thread", one_thread(url, plan)))
        found = list(contended(url, plan))
        for layout in ("threads", "processes"):
            show(contended_table(layout, [point for point in found if point.layout == layout]))
        show(table("The purpose of the line", goals(found)))
        show(plot(found, OUT / "queue.png"))


if __name__ == "__main__":
    main()
