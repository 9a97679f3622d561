"""As `paired`, with a persistent queue and un-acked items: each verb meets each other one."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_persistent_world import Persistent
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet

NAME = "paired_persistent"


@workload(clients=1, steps=12, never=NEVER)
def paired_persistent(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, Persistent)
    return []
