"""As `paired`, with sessions that several openers share: heartbeats, ends and takes meet at a deadline."""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet
from tests.system.workloads.paired_sessions_world import Sessions

NAME = "paired_sessions"


@workload(clients=1, steps=12, never=NEVER)
def paired_sessions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    simulation.limit(VERB_BATCH=random.choice((1, 200)), DEAD_SESSIONS_MAX=random.choice((1, 100)))
    let_pairs_meet(simulation, size, NAME, random, Sessions)
    return []
