"""Other workloads while batch priority starves, for a time or for ever; they keep their checkers."""

from collections.abc import Sequence
from math import inf

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.late import one_of

STARVED = ("tasks", "acks", "pipeline", "keyed", "rounds", "waits")


@workload(clients=2, steps=4)
def starving(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Other workloads while batch priority starves: sweeps, and the ends of dead sessions, go on."""
    start = simulation.random.choice((0.0, simulation.random.uniform(0, 60)))
    simulation.starving = [(start, simulation.random.choice((start + 20, start + 300, inf)))]
    return one_of(STARVED, simulation, size)
