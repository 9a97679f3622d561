"""The client of `paired` and of the workloads named after it: pairs of calls in a world."""

from collections.abc import Callable
from random import Random

from fdbqueue.testing.cases import Size
from fdbqueue.testing.simulation import MEMORY, Client, Simulation
from tests.system.workloads.paired_process import Process
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import World

NEVER = ("die", "stall", "slow_reply", "clock_skew_s")
"""The faults of the run would meet no call: each pair has databases of its own."""

Made = Callable[[Random, Twins], World]


def let_pairs_meet(
    simulation: Simulation,
    size: Size,
    name: str,
    random: Random,
    made: Made,
    process_in: Callable[[Twins, World], Process] = Process,
) -> None:
    def use(client: Client) -> None:
        client.calm()
        twins = Twins(client, MEMORY)
        try:
            process = process_in(twins, made(random, twins))
            process.prepare()
            for _ in range(size.steps):
                client.call(name, "pair", None, process.step)
        finally:
            twins.close()

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")


def bounded(simulation: Simulation, random: Random) -> None:
    """Let no process sweep by itself, and draw the levels at which tasks of a key are counted."""
    simulation.limit(
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
        SESSIONS_SWEPT_EVERY_S=0,
        KEY_LEVEL_MIN=random.choice((1, 64)),
        FAILURES_KEPT=random.choice((1, 3)),
    )
