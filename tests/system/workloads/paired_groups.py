"""As `paired`, with groups of members in queues that come and go: each verb meets each other one."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_groups_world import Groups
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet

NAME = "paired_groups"


@workload(clients=1, steps=10, never=NEVER)
def paired_groups(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, Groups)
    return []
