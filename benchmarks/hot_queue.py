"""The rate at which one queue ends on a large cluster: python -m benchmarks.hot_queue [--batch N]

A model: counts of calls (docs/performance.md#partitions) and rates of one storage server, which are
FoundationDB's own (docs/scaling.md). The rate is the smallest of three bounds, each of a storage team:

- the writes of the busiest partition;
- the receipts, one for each put and each ack: those of one root are one shard;
- the reads of the queue's definition, one for each transaction.
"""

import argparse
from dataclasses import dataclass

PARTITIONS = (1, 16, 256)


@dataclass(frozen=True)
class Server:
    """The rates of one storage server process, and the number of copies of each key."""

    writes_per_s: float = 20_000
    reads_per_s: float = 50_000
    copies: int = 3


@dataclass(frozen=True)
class Task:
    """The costs of one task that is put, taken and acked."""

    mutations: float
    """Of the queue itself, without receipts."""
    transactions: float
    receipts: float


ONE_BY_ONE = Task(mutations=10, transactions=3, receipts=2)
"""A put, a take and an ack, each in a transaction of its own: 12 mutations, of which two are receipts."""


def in_batches(batch: int) -> Task:
    """The costs of one task of a batch: its transactions and the counters are shared.

    Of the 10 mutations, three are of counters: one for each of the three calls.
    """
    counters, one = 3, ONE_BY_ONE
    return Task(
        one.mutations - counters + counters / batch,
        one.transactions / batch,
        one.receipts / batch,
    )


def bounds(task: Task, teams: int, server: Server) -> dict[str, float]:
    """Tasks a second, by the part of the cluster that ends them. `teams` have an even part of the queue."""
    return {
        "partitions": teams * server.writes_per_s / task.mutations,
        "receipts": server.writes_per_s / task.receipts,
        "definition": server.copies * server.reads_per_s / task.transactions,
    }


def end_of(task: Task, teams: int, server: Server) -> tuple[str, float]:
    """The first part that ends, and its rate. On one team, the receipts are beside the queue."""
    if teams == 1:
        writes = task.mutations + task.receipts
        return "partitions", server.writes_per_s / writes
    return min(bounds(task, teams, server).items(), key=lambda bound: bound[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=100)
    batch = parser.parse_args().batch
    print(f"{'partitions, teams':>18}{'one by one':>30}{f'batches of {batch}':>30}")
    for teams in PARTITIONS:
        ends = [end_of(task, teams, Server()) for task in (ONE_BY_ONE, in_batches(batch))]
        print(f"{teams:18}" + "".join(f"{f'{rate:,.0f}/s ({part})':>30}" for part, rate in ends))


if __name__ == "__main__":
    main()
