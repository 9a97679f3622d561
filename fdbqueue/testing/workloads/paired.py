"""Two calls, of which one begins and ends just before the other one commits: answers and store equal those of
one of the two serial orders.

The calls happen up to three times from the same rows. First the second call happens in the middle of the
first one, between its last read and its commit. Then it happens before that transaction, or after it. So a
conflict that is missing is found for sure. The code itself, in a serial order, has the right answer.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.simulation import MEMORY, Checker, Client, Simulation
from fdbqueue.testing.workloads import Size, workload
from fdbqueue.testing.workloads.paired_process import Process
from fdbqueue.testing.workloads.paired_store import Twins
from fdbqueue.testing.workloads.paired_worlds import drawn_world

NAME = "paired"


@workload(clients=1, steps=12, never=("die", "stall", "slow_reply", "clock_skew_s"))
def paired(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} paired")
    simulation.limit(
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
        SESSIONS_SWEPT_EVERY_S=0,
        KEY_LEVEL_MIN=random.choice((1, 64)),
        FAILURES_KEPT=random.choice((1, 3)),
    )

    def use(client: Client) -> None:
        client.calm()
        twins = Twins(client, MEMORY)
        try:
            process = Process(twins, drawn_world(random, twins))
            process.prepare()
            for _ in range(size.steps):
                client.call(NAME, "pair", None, process.step)
        finally:
            twins.close()

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")
    return []
