"""Predicted and measured load of a storage server: python -m benchmarks.sizing --url fdb:... [--seconds S]

Processes of one thread put, take and ack tasks, each in a queue of its own, so that no call meets another.
The status of the cluster tells its load. The model of `fdbqueue estimate` predicts it for the measured rate.
The cluster must be idle beside, and have one storage server and one log. Then follow the processor time of
each call of a client, and the cores that each server uses.
"""

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.storage_servers import SETTLE_S
from benchmarks.writes import Shape
from fdbqueue.operate.checks import see_status
from fdbqueue.operate.estimate import LOADS, Plan, load_of

SHAPES = (
    Shape("fifo"),
    Shape("utubettl", ("ttr",), payload=1_000),
    Shape("fifo", batch=10),
)
LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Totals:
    """Counters of the cluster, and of its only storage server and log."""

    counts: dict[str, float]
    at_s: float

    @classmethod
    def of(cls, status: dict[str, Any]) -> "Totals":
        cluster = status["cluster"]
        roles = [role for process in cluster["processes"].values() for role in process["roles"]]
        [storage] = [role for role in roles if role["role"] == "storage"]
        [log] = [role for role in roles if role["role"] == "log"]
        workload = cluster["workload"]
        counts = {
            "mutations": storage["mutations"]["counter"],
            "bytes_written": workload["bytes"]["written"]["counter"],
            "log_bytes": log["input_bytes"]["counter"],
            "reads": storage["finished_queries"]["counter"],
            "bytes_read": storage["bytes_queried"]["counter"],
            "commits": workload["transactions"]["committed"]["counter"],
        }
        return cls(counts, cluster["cluster_controller_timestamp"])

    def rates_since(self, before: "Totals") -> dict[str, float]:
        seconds = self.at_s - before.at_s
        return {name: (self.counts[name] - before.counts[name]) / seconds for name in LOADS}


class Client(NamedTuple):
    """What one process has done: its tasks, and its processor time by call."""

    tasks: int
    spent_us: Counter[str]


def work(url: str, root: str, name: str, shape: Shape, seconds: float) -> Client:
    """Put, take and ack tasks for `seconds`."""
    spent = Counter[str]()  # whole microseconds

    def timed(call: str, run: Any) -> Any:
        began = time.process_time()
        answer = run()
        spent[call] += round(1e6 * (time.process_time() - began))
        return answer

    with fdbqueue.open(url) as db:
        queue, tasks = shape.create(db, name, Subspace((root,))), 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            numbers = range(tasks, tasks + shape.batch)
            timed("put", partial(shape.put, db, queue, numbers))
            taken = timed("take", partial(shape.take, db, queue))
            timed("ack", partial(shape.ack, db, queue, taken))
            tasks += len(taken)
    return Client(tasks, spent)


@dataclass(frozen=True)
class Measured:
    tasks_per_second: float
    rates: dict[str, float]
    spent: dict[str, float]
    """Processor time by call, in microseconds for each."""
    busy: dict[str, float]
    """Cores of each server, by its roles."""


def measure(url: str, shape: Shape, processes: int, seconds: float) -> Measured:
    """The load between two looks at the status. It has counters that are up to five seconds old."""
    root = f"sizing-{os.urandom(4).hex()}"
    with fdbqueue.open(url) as db, multiprocessing.get_context("spawn").Pool(processes) as pool:
        time.sleep(SETTLE_S)
        before = Totals.of(see_status(db))
        each = [(url, root, f"q{number}", shape, seconds) for number in range(processes)]
        working = pool.starmap_async(work, each)
        looks: list[dict[str, float]] = []
        while not working.ready():
            working.wait(LOOK_EVERY_S)
            looks.append(cores(see_status(db)))
        done = working.get()
        time.sleep(SETTLE_S)
        after = Totals.of(see_status(db))
        db.clear_range_startswith(Subspace((root,)).key())
    tasks, span_s = sum(client.tasks for client in done), after.at_s - before.at_s
    spent = sum((client.spent_us for client in done), Counter[str]())
    return Measured(
        tasks / span_s,
        after.rates_since(before),
        {call: each / tasks * shape.batch for call, each in spent.items()},
        {name: mean(look.get(name, 0.0) for look in looks[1:-1] or looks) for name in looks[-1]},
    )


def cores(status: dict[str, Any]) -> dict[str, float]:
    processes = status["cluster"]["processes"].values()
    return {
        "+".join(sorted(role["role"] for role in process["roles"])): process["cpu"]["usage_cores"]
        for process in processes
    }


def rows(shape: Shape, found: Measured) -> Iterator[str]:
    """Predicted, measured, and their ratio."""
    plan = Plan(found.tasks_per_second, shape.payload, shape.kind, 1, shape.batch, 1, shape.options)
    predicted = vars(load_of(plan).times(found.tasks_per_second))
    told = " ".join((shape.kind, *shape.options, f"{shape.payload} bytes, batch {shape.batch}"))
    yield f"{told}: {found.tasks_per_second:,.0f} tasks a second"
    for name in LOADS:
        wanted, seen = predicted[name], found.rates[name]
        yield f"  {name:16}{wanted:14,.0f}{seen:14,.0f}{seen / wanted:8.2f}"
    yield "  microseconds of a client: " + ", ".join(f"{call} {us:,.0f}" for call, us in found.spent.items())
    yield "  cores: " + ", ".join(f"{name} {used:.2f}" for name, used in found.busy.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a FoundationDB cluster, fdb:CLUSTER_FILE")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=4)
    asked = parser.parse_args()
    for shape in SHAPES:
        for line in rows(shape, measure(asked.url, shape, asked.processes, asked.seconds)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
