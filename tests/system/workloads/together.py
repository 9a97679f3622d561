"""Calls of several threads of one process at once: answers and store equal those of one serial order.

Calls of one kind combine: one thread makes those of others in its transaction. Some are interrupted, some
commits have unknown results, and some leases are stale. From the same rows, the calls then happen one after
the other, in one order after another, until one of them has the same outcome. So an answer that goes to the
wrong thread, and an error of one call that another one gets, is found for sure.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.paired_calls import Call
from tests.system.workloads.paired_elements import Elements
from tests.system.workloads.paired_items import FairItems, Items
from tests.system.workloads.paired_runs import NEVER, bounded, let_pairs_meet
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_task_calls import BY_HOLDER, ROOT
from tests.system.workloads.paired_tasks import KINDS, Tasks
from tests.system.workloads.paired_world import World
from tests.system.workloads.together_process import Together

NAME = "together"
STALE = 0.25


class Held(Tasks):
    """Tasks whose verbs come under stale leases, too. No memory of a process changes an answer."""

    kinds = tuple(kind for kind in KINDS if kind[0] != "bag")
    by_holder = (*BY_HOLDER, *("ack",) * 12)
    counts = (1,)
    """A take of several may give fewer: it shares the bytes of a transaction with others."""

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        # A take of nothing for an overdue session may tell that it has ended, or not.
        self.sessions = [Session(twins.own, ttr=inf) for _ in self.sessions]

    def refresh(self) -> None:
        """Sweep first: a call given a database sweeps in transactions of its own, which others may follow."""
        self.own.q.paused(self.twins.own)
        keeper_of(self.twins.own, ROOT).tick()
        super().refresh()

    def _drawn_options(self) -> dict[str, Any]:
        return {name: value for name, value in super()._drawn_options().items() if name != "partitions"}

    def is_loose(self, one: Call, other: Call) -> bool:
        """Two steps of one name at once are refused: one of them is told so."""
        return (one.text[:5] == other.text[:5] == "step ") or super().is_loose(one, other)

    def _lease(self, id_: str) -> Task:
        held = super()._lease(id_)
        if self.random.random() > STALE or held.token is None:
            return held
        return replace(held, token=bytes(reversed(held.token)))


class InOnePart(Items):
    partitions = (0, 1)


WORLDS: tuple[type[World], ...] = (*(Held,) * 6, InOnePart, InOnePart, FairItems, Elements)


@workload(clients=1, steps=16, never=NEVER)
def together(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    bounded(simulation, random)
    simulation.limit(ACKS_APART_MAX=random.choice((0, 0, 1)))
    let_pairs_meet(simulation, size, NAME, random, drawn, Together)
    return []


def drawn(random: Random, twins: Twins) -> World:
    return random.choice(WORLDS)(random, twins)
