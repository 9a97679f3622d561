"""As `paired`, with schedules whose due times have come: each verb meets each other one."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet
from tests.system.workloads.paired_schedules_world import Schedules

NAME = "paired_schedules"


@workload(clients=1, steps=12, never=NEVER)
def paired_schedules(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, Schedules)
    return []
