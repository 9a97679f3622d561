"""Groups: members in two queues that end in every way, also all at once, beside cancels and moves.

Processes die in between. At the end, each group must have ended, and its task has run once.
"""

from collections.abc import Sequence
from contextlib import suppress

from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueNotFound, RepartitionUnderWay, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.groups_checks import NAME, PROMISES, PROMPT_S
from tests.system.workloads.groups_deeds import (
    close_all,
    disturb,
    end,
    left,
    look,
    make,
    once,
    run_then,
    second,
)
from tests.system.workloads.tasks import outlive

KINDS = ("fifo", "fifottl", "utube", "bag")


def outlive_all(client: Client, q: TaskQueue) -> None:
    for queue in (q, second(client)):
        outlive(client, queue, end)


@workload(clients=2, steps=4)
def groups(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3, GROUPS_SWEPT_MAX=2, GROUPS_ENDED_MAX=1)
    kind, partitions = simulation.random.choice(KINDS), simulation.random.choice((1, 1, 3))

    def opened(client: Client) -> TaskQueue:
        ttr = None if kind in ("fifo", "utube") else 2
        return TaskQueue.create(client.db, NAME, kind, ttr=ttr, partitions=partitions, if_not_exists="any")

    def produce(client: Client) -> None:
        q = opened(client)
        for step in range(size.steps):
            make(client, q, f"{client.name}.{step}")
            client.pause(0.4)

    def work(client: Client) -> None:
        q = opened(client)
        for _ in range(2):
            with suppress(UnknownSession), Session(client.db, ttr=3) as session:
                for _ in range(2 * size.steps):
                    with suppress(QueueNotFound):
                        once(client, second(client) if client.random.random() < 0.3 else q, session)
                    run_then(client, session)

    def operate(client: Client) -> None:
        q = opened(client)
        for _ in range(2 * size.steps):
            client.pause(0.6)
            disturb(client, q)
            if partitions > 1 and client.random.random() < 0.3:
                with suppress(RepartitionUnderWay):
                    q.repartition(client.db, client.random.choice((2, 3, 5)))

    def watch(client: Client) -> None:
        opened(client)
        client.calm()  # many reads in one transaction: among frequent faults, it would never end
        for _ in range(2 * size.steps):
            client.pause(0.5)
            look(client)

    def survive(client: Client) -> None:
        q = opened(client)
        close_all(client)
        outlive_all(client, q)
        until = client.runtime.monotonic() + PROMPT_S
        while client.runtime.monotonic() < until:
            outlive_all(client, q)
            while run_then(client):
                pass
            client.runtime.sleep(1.0)
        look(client)
        client.call(NAME, "left", None, lambda: run(client.db, left))

    simulation.client(operate, "operator")
    simulation.client(watch, "watcher")
    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    return [*PROMISES, no_watch_left_behind]
