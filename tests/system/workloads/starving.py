"""Batch priority that starves, for a time or for ever: below other workloads, which keep their checkers, and
below the end of a session that has died.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.engine import UNPACED
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.late import one_of
from tests.system.workloads.stage import Tasks, outlive
from tests.system.workloads.tasks import finish

STARVED = ("tasks", "acks", "pipeline", "keyed", "rounds", "waits")
NAME = "held"
QUEUES = 12
TTR_S = 5.0
ENDED_WITHIN_S = 4.0
"""The looks of a round of a keeper wait for batch priority, each for limits.BATCH_PATIENCE_S at most."""


@workload(clients=2, steps=4, more=("batch_throttled",))
def starving(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Other workloads while batch priority starves, or is refused (1051): sweeps and ends go on."""
    start = simulation.random.choice((0.0, simulation.random.uniform(0, 60)))
    simulation.starving = [(start, simulation.random.choice((start + 20, start + 300, inf)))]
    return [*one_of(STARVED, simulation, size), priority_is_kept]


def priority_is_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an attempt after one at batch priority asks for it again: an error does not keep it."""
    for at_s, who, what, _text in trace.events:
        if what == UNPACED:
            yield f"{who} {what} at {at_s:.3f} s"


@workload(clients=1, steps=1, never=("die", "stall", "slow_reply", "clock_skew_s"))
def starved(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A session that holds tasks of many queues dies while batch priority starves: its end does not wait for
    that in each queue.
    """
    simulation.gives_signs = True  # of life, as on a cluster: nobody else tells that a process is gone
    simulation.starving = [(0.0, inf)]
    queues = [Tasks(f"{NAME}-{number}", ttr=300) for number in range(QUEUES)]
    died_s: list[float] = []

    def hold(client: Client) -> None:
        session = Session(client.db, ttr=TTR_S)
        for queue in queues:
            q = queue(client)
            q.put(client.db, q.name)
            q.take(client.db, 0, session=session)
        died_s.append(client.runtime.monotonic())
        client.runtime.scheduler.die(client.runtime.host)

    def keep(client: Client) -> None:
        """Only sweep: a call that finds nothing would end the session itself."""
        with Session(client.db, ttr=300):
            while not died_s:
                client.runtime.sleep(0.1)
            client.runtime.sleep(max(0.0, died_s[0] + TTR_S + ENDED_WITHIN_S - client.runtime.monotonic()))
            client.call(NAME, "held", None, partial(run, client.db, partial(number_held, client)))

    def survive(client: Client) -> None:
        for queue in queues:
            outlive(client, queue(client), finish)

    def number_held(client: Client, tr: Transaction) -> int:
        found = [TaskQueue.open(client.db, queue.name).statistics(tr) for queue in queues]
        return sum(one["tasks"]["taken"] for one in found)

    for number in range(size.clients):
        simulation.client(keep, f"keeper-{number}")
    simulation.client(hold, "holder")
    simulation.afterwards(survive, "survivor")
    return [ended_in_time]


def ended_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a dead session holds nothing some seconds after its ttr."""
    for op in trace.of(NAME, "held"):
        if op.result:
            yield f"{op.result} tasks are still held {ENDED_WITHIN_S:g} s after the ttr of a dead session"
