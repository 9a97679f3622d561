"""Calls with commits in doubt: one after another has an unknown result, and is done at once, late or never.

From the same rows, each call happens without any of that, too, with the same answer and the same store. So an
effect that is lost, happens twice or is told wrong at a second attempt is found for sure.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.doubted_process import Doubts
from tests.system.workloads.paired_groups_world import Groups
from tests.system.workloads.paired_limits_world import Limits
from tests.system.workloads.paired_partitions_world import Moves
from tests.system.workloads.paired_persistent_world import Persistent
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet
from tests.system.workloads.paired_schedules_world import Schedules
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import World
from tests.system.workloads.paired_worlds import WORLDS

NAME = "doubted"
ALL_WORLDS: tuple[type[World], ...] = (*WORLDS, Groups, Limits, Moves, Persistent, Schedules)


@workload(clients=1, steps=16, never=NEVER)
def doubted(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    let_pairs_meet(simulation, size, NAME, random, drawn, Doubts)
    return []


def drawn(random: Random, twins: Twins) -> World:
    return random.choice(ALL_WORLDS)(random, twins)
