"""As `exact`, with a queue of items, in partitions or not: a plain model has each value in its place.

Before and after each call, a look lists the values of each partition. So a call may choose a partition, and
must leave all else as it was. Readers hold values, show some of them, or let them lie until their deadline.
"""

from collections.abc import Sequence
from random import Random

from fdb.subspace_impl import Subspace

from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.exact_items_process import NAME, ItemsProcess


@workload(clients=1, steps=40, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_items(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact items")
    partitions, contended = random.choice((None, 1, 2, 3, 3)), random.choice(("staged", "simple"))
    simulation.limit(
        SERVE_MAX=random.choice((2, 50, 50)),
        NOTICE_BYTES_MAX=random.choice((0, 40, 8_000)),
        PAYLOAD_PIECE_BYTES_MAX=random.choice((8, 100_000)),
    )

    def use(client: Client) -> None:
        if partitions is None:
            q = Queue(Subspace((NAME,)), contended=contended)
        else:
            q = Queue.named(client.db, NAME, partitions=partitions, contended=contended)
        process = ItemsProcess(client, q, is_named=partitions is not None)
        for _ in range(size.steps):
            process.step()
        process.end()

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")
    return []
