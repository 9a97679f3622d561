"""Conflicts and commits for each task: python -m benchmarks.partitions --url URL
[--tasks N] [--clients N,N] [--partitions N,N] [--backlog N] [--kind KIND]

Each client has a database object of its own, as a process has: its own session, line and combined calls. It
puts, takes and acks one task at a time, in a thread. The backlog stands before that, and stays. The numbers
are counts, which a busy machine does not change.
"""

import argparse
import os
from dataclasses import asdict

from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.storage_servers import run_threads
from fdbqueue.counters import Counters

TAKE_TIMEOUT_S = 120.0


def counts(
    url: str, clients: int, partitions: int, tasks: int, backlog: int = 0, kind: str = "fifo"
) -> Counters:
    """The counts of all clients together, for this number of tasks."""
    root = Subspace(("fdbqueue-benchmark", os.urandom(8).hex()))
    databases = [fdbqueue.open(url, create=True) for _ in range(clients)]
    try:
        fdbqueue.TaskQueue.create(databases[0], "q", kind, root=root, partitions=partitions)
        queues = [fdbqueue.TaskQueue.open(db, "q", root=root) for db in databases]
        for task in range(backlog):  # one at a time: each goes to the next partition
            queues[0].put(databases[0], task)
        began = [asdict(db.counters) for db in databases]

        def one_client(number: int) -> None:
            db, queue = databases[number], queues[number]
            for task in range(number, tasks, clients):
                queue.put(db, task)
                taken = queue.take(db, TAKE_TIMEOUT_S)
                assert taken is not None, "each client takes no more than it has put"
                queue.ack(db, taken)

        run_threads(one_client, clients)
        grown = [
            {name: count - before[name] for name, count in asdict(db.counters).items()}
            for db, before in zip(databases, began, strict=True)
        ]
        return Counters(**{name: sum(one[name] for one in grown) for name in grown[0]})
    finally:
        databases[0].clear_range_startswith(root.key())
        for db in databases:
            db.close()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--tasks", type=int, default=3200)
    parser.add_argument("--clients", type=_numbers, default=[4, 16, 64])
    parser.add_argument("--partitions", type=_numbers, default=[1, 16])
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("--kind", default="fifo")
    asked = parser.parse_args()
    print(f"{'clients':>8}{'partitions':>12}{'commits':>10}{'conflicts':>11}{'retries':>9}")
    for clients in asked.clients:
        for partitions in asked.partitions:
            found = asdict(counts(asked.url, clients, partitions, asked.tasks, asked.backlog, asked.kind))
            each = {name: count / asked.tasks for name, count in found.items()}
            print(
                f"{clients:8}{partitions:12}{each['commits']:10.2f}{each['conflicts']:11.3f}"
                f"{each['retries']:9.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
