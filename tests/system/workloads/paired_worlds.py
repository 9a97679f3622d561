"""The queues of the workload `paired`: each run has one of them."""

from random import Random

from tests.system.workloads.paired_items import Elements, FairItems, Items
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_tasks import Tasks
from tests.system.workloads.paired_world import World

WORLDS: tuple[type[World], ...] = (*(Tasks,) * 8, Items, Items, FairItems, Elements)


def drawn_world(random: Random, twins: Twins) -> World:
    return random.choice(WORLDS)(random, twins)
