"""As `paired`, with a queue that moves to another number of partitions: each verb meets each other one."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet
from tests.system.workloads.paired_tasks import Moves

NAME = "paired_partitions"


@workload(clients=1, steps=8, never=NEVER)
def paired_partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, Moves)
    return []
