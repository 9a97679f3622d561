"""Waits for an empty queue that are interrupted, as by Ctrl-C, while they register in its line."""

from collections.abc import Sequence
from functools import partial

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import checks, cramped, dequeue, drain, line_left_empty, queue
from tests.system.workloads.interrupts import in_doubt, no_watch_left_open

NAME = "interrupted_waits"
PATIENCE_S = 1.0
SOON_S, LATE_S = 0.0005, 0.05
"""A registration begins after the few scheduling points of a take that finds nothing."""


# The dead withdraw nothing, and a withdrawal that takes longer than CLOSE_TIMEOUT_S is given up.
@workload(clients=2, steps=6, never=("die", "slow_reply", "stall"))
def interrupted_waits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)

    def wait(client: Client) -> None:
        for _ in range(size.steps):
            after_s = scattered(client.random, SOON_S, LATE_S)
            with in_doubt():
                client.interrupted(after_s, partial(dequeue, client, q, NAME, PATIENCE_S))
            client.pause(0.1)

    for number in range(size.clients):
        simulation.client(wait, f"waiter-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    others = (one for one in checks(NAME) if one is not no_watch_left_behind)
    return [*others, no_watch_left_open, line_left_empty(NAME)]
