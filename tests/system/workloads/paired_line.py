"""As `paired`, with a queue of items and requests in its waiting line: each verb meets each other one."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_line_world import Requests
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet

NAME = "paired_line"


@workload(clients=1, steps=16, never=NEVER)
def paired_line(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    simulation.limit(SERVE_MAX=random.choice((1, 2, 20)))
    let_pairs_meet(simulation, size, NAME, random, Requests)
    return []
