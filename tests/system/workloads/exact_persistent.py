"""A persistent queue and its proxies in one process: each answer and each item equal those of a plain model.

Proxies fetch items, ack them in any order, and close; transactions commit, fail, or lose an item to an
operator; the next client of the same owner begins with the items that the one before it has not acked.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.exact_persistent_deeds import NAME, Process


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_persistent(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact persistent")
    simulation.limit(VERB_BATCH=random.choice((1, 2, 8)), TAKEN_READ_MAX=random.choice((1, 2, 50)))
    maxsize = random.choice((0, 3))

    def use(client: Client) -> None:
        process = Process(client, maxsize, Random(f"{simulation.seed} lost items"))
        for _ in range(size.steps):
            client.call(NAME, "step", None, process.step)
        process.close_all()

    simulation.client(use, "user-0")
    return [no_watch_left_behind]
