"""The queues of the workload `paired`: each run has one of them."""

from random import Random

from fdbqueue.testing.workloads.paired_elements import Elements
from fdbqueue.testing.workloads.paired_items import FairItems, Items
from fdbqueue.testing.workloads.paired_store import Twins
from fdbqueue.testing.workloads.paired_tasks import Tasks
from fdbqueue.testing.workloads.paired_world import World

WORLDS: tuple[type[World], ...] = (*(Tasks,) * 8, Items, Items, FairItems, Elements)


def drawn_world(random: Random, twins: Twins) -> World:
    return random.choice(WORLDS)(random, twins)
