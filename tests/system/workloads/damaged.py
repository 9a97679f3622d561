"""One process, and damage between its calls: bytes of a stored value are cut, or overwritten.

A damaged value costs itself and nothing else. It is mended, buried or set aside as it was, and all others
are given as they were put.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import crowded
from tests.system.workloads.damaged_handles import KINDS, NAME
from tests.system.workloads.damaged_process import Process


@workload(
    clients=1, steps=40, never=("die", "stall", "slow_reply", "clock_skew_s"), wide=("BATCH_BYTES_MAX",)
)
def damaged(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    crowded(simulation)
    simulation.limit(PAYLOAD_PIECE_BYTES_MAX=random.choice((16, 100_000)))
    make = random.choice(KINDS)

    def use(client: Client) -> None:
        process = Process(client, make(client, random))
        for _ in range(size.steps):
            client.call(NAME, "step", None, process.step)
        client.call(NAME, "end", None, process.end)

    simulation.client(use, "user-0")
    return []
