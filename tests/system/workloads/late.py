"""Other workloads under one more condition; they keep their checkers.

Commits end with 1039 and arrive late or never; or requests in waiting lines give signs of life, as on a
cluster.
"""

from collections.abc import Sequence

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system import workloads

LATE = (
    *("acks", "clearing", "combined", "keyed", "named", "pipeline"),
    *("proxies", "recipe", "rounds", "tasks", "waits"),
)
WAITING = ("acks", "crossed", "crowd", "recipe", "stops", "takeover", "tasks", "waits")


@workload(clients=2, steps=4, more=("version_changed",))
def late(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Other workloads, with commits that end with 1039 and arrive late or never; they keep their checkers."""
    return one_of(LATE, simulation, size)


@workload(clients=2, steps=4)
def signs(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Other workloads, whose requests in waiting lines give signs of life, as on a cluster."""
    simulation.gives_signs = True
    return one_of(WAITING, simulation, size)


def one_of(names: Sequence[str], simulation: Simulation, size: Size) -> Sequence[Checker]:
    return workloads.all_workloads()[simulation.random.choice(names)].build(simulation, size)
