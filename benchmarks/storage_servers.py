"""The load of queues on each storage server: python -m benchmarks.storage_servers --url fdb:...
[--queues N] [--partitions N] [--spread] [--threads N] [--tasks N] [--bytes N]

Threads put, take and ack the tasks of short queues below one root. Each row is a storage server of the
cluster: the shards of that root that it has, and the growth of its own counters during the load. With
--spread, `fdbqueue spread --apply` follows for each queue, and then the load once more. It needs fdbcli.
"""

import argparse
import importlib
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.observing import Counters
from fdbqueue.operate.checks import see_status

TAKE_TIMEOUT_S = 60.0
SETTLE_S = 11.0
"""A server tells its counters every five seconds, and the status has those that it told last."""


@dataclass(frozen=True)
class Plan:
    queues: int
    threads: int
    tasks: int
    payload_bytes: int = 20
    partitions: int = 1

    def tasks_of(self, thread: int) -> range:
        """Numbers of tasks. Those that run together are neighbours, and so have different queues."""
        return range(thread, self.tasks, self.threads)


@dataclass(frozen=True)
class Grown:
    """Counters of one storage server: their values, or their growth."""

    input_bytes: int = 0
    mutations: int = 0
    total_queries: int = 0

    @classmethod
    def of(cls, role: dict[str, Any]) -> "Grown":
        return cls(*(role.get(field.name, {}).get("counter", 0) for field in fields(cls)))

    def __sub__(self, before: "Grown") -> "Grown":
        return Grown(*(getattr(self, name) - value for name, value in asdict(before).items()))


@dataclass(frozen=True)
class Work:
    """The calls of all threads, together."""

    tasks: int
    seconds: float
    counters: Counters

    def __str__(self) -> str:
        each = {name: count / self.tasks for name, count in asdict(self.counters).items()}
        return (
            f"{self.tasks:,} tasks put, taken and acked, {self.tasks / self.seconds:,.0f} a second; each: "
            f"{each['commits']:.2f} commits, {each['conflicts']:.3f} conflicts, {each['retries']:.3f} retries"
        )


def storage_servers(db: fdbqueue.Database) -> dict[str, Grown]:
    """The counters of each storage server, by its address."""
    processes = see_status(db)["cluster"]["processes"].values()
    return {
        process["address"]: Grown.of(role)
        for process in processes
        for role in process["roles"]
        if role["role"] == "storage"
    }


def shards(db: fdbqueue.Database, root: Subspace) -> list[bytes]:
    """The first key, below the root, of each shard with keys of the root."""
    begin = root.key()
    inside = locality().get_boundary_keys(db.engine, begin, root.range().stop)
    return [begin, *(key for key in inside if key != begin)]


def shards_by_server(db: fdbqueue.Database, root: Subspace) -> Counter[str]:
    """A shard counts at each server that has a copy of it."""
    transaction = db.create_transaction()
    asked = [locality().get_addresses_for_key(transaction, key) for key in shards(db, root)]
    return Counter(address.decode() for found in asked for address in found.wait())


def locality() -> Any:
    """The binding's module of that name, which needs the client library when it is imported."""
    return importlib.import_module("fdb.locality")


def work(db: fdbqueue.Database, queues: list[fdbqueue.TaskQueue], plan: Plan) -> Work:
    """Put, take and ack the tasks of the plan. A queue never holds more than one task for each thread."""

    value = "v" * plan.payload_bytes

    def one_thread(thread: int) -> None:
        for number in plan.tasks_of(thread):
            queue = queues[number % len(queues)]
            queue.put(db, value)
            task = queue.take(db, TAKE_TIMEOUT_S)
            assert task is not None, "each thread takes no more than it has put"
            queue.ack(db, task)

    before = Counters(**asdict(db.counters))
    began = time.monotonic()
    run_threads(one_thread, plan.threads)
    seconds = time.monotonic() - began
    after = {name: count - getattr(before, name) for name, count in asdict(db.counters).items()}
    return Work(plan.tasks, seconds, Counters(**after))


def run_threads(target: Any, threads: int) -> None:
    """Raises the first error of a thread."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            target(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def table(grown: dict[str, Grown], shards_of: Counter[str], tasks: int) -> Iterator[str]:
    """One row for each server, the busiest first."""
    whole = sum(server.input_bytes for server in grown.values()) or math.inf
    yield f"{'':22}{'shards':>8}{'input':>12}{'share':>8}{'bytes a task':>14}{'mutations':>12}{'queries':>12}"
    for address, server in sorted(grown.items(), key=lambda item: -item[1].input_bytes):
        yield (
            f"{address:22}{shards_of[address]:8}{server.input_bytes / 1e6:9,.1f} MB"
            f"{server.input_bytes / whole:8.1%}{server.input_bytes / tasks:14,.0f}"
            f"{server.mutations:12,}{server.total_queries:12,}"
        )


def make_queues(db: fdbqueue.Database, root: Subspace, plan: Plan) -> list[fdbqueue.TaskQueue]:
    names = [f"queue-{number:03}" for number in range(plan.queues)]
    return [fdbqueue.TaskQueue.create(db, name, partitions=plan.partitions, root=root) for name in names]


def spread(url: str, root: str, queues: list[fdbqueue.TaskQueue], *options: str) -> None:
    """Run `fdbqueue spread --apply` for each queue. Status 1 tells of partitions that share a team."""
    for queue in queues:
        words = ["spread", queue.name, "--apply", *options, "--url", url, "--root", root]
        done = subprocess.run([sys.executable, "-m", "fdbqueue.operate.cli", *words], check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.returncode)


def report(db: fdbqueue.Database, root: Subspace, queues: list[fdbqueue.TaskQueue], plan: Plan) -> str:
    """The load of the plan on these queues, as a table."""
    time.sleep(SETTLE_S)
    before = storage_servers(db)
    worked = work(db, queues, plan)
    time.sleep(SETTLE_S)
    after = storage_servers(db)
    grown = {address: server - before.get(address, Grown()) for address, server in after.items()}
    of = f"{len(queues)} queues of {plan.partitions} partitions"
    title = f"{of}, {plan.threads} threads, {len(shards(db, root))} shards: {worked}"
    return "\n".join([title, *table(grown, shards_by_server(db, root), plan.tasks)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a FoundationDB cluster, fdb:CLUSTER_FILE")
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1, help="of each queue")
    parser.add_argument("--spread", action="store_true", help="measure again after fdbqueue spread --apply")
    parser.add_argument("--threads", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--bytes", type=int, default=20, help="of each payload")
    asked = parser.parse_args()
    path = ("fdbqueue-benchmark", os.urandom(8).hex())
    root = Subspace(path)
    plan = Plan(asked.queues, asked.threads, asked.tasks, asked.bytes, asked.partitions)
    with fdbqueue.open(asked.url) as db:
        try:
            queues = make_queues(db, root, plan)
            print(report(db, root, queues, plan))
            if asked.spread:
                measure_spread(db, asked.url, path, queues, plan)
        finally:
            db.clear_range_startswith(root.key())


def measure_spread(
    db: fdbqueue.Database, url: str, path: tuple[str, ...], queues: list[fdbqueue.TaskQueue], plan: Plan
) -> None:
    try:
        spread(url, "/".join(path), queues)
        print(report(db, Subspace(path), queues, plan))
    finally:
        spread(url, "/".join(path), queues, "--remove")


if __name__ == "__main__":
    main()
