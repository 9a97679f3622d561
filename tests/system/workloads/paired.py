"""Two calls, of which one begins and ends just before the other one commits: answers and store equal those of
one of the two serial orders.

The calls happen up to three times from the same rows. First the second call happens in the middle of the
first one, between its last read and its commit. Then it happens before that transaction, or after it. So a
conflict that is missing is found for sure. The code itself, in a serial order, has the right answer.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet
from tests.system.workloads.paired_worlds import drawn_world

NAME = "paired"


@workload(clients=1, steps=12, never=NEVER)
def paired(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} paired")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, drawn_world)
    return []
