"""As `paired`, with two queues under limits: each verb meets each other one beside a last slot or token."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_limits_world import Limits
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet

NAME = "paired_limits"


@workload(clients=1, steps=10, never=NEVER)
def paired_limits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, Limits)
    return []
