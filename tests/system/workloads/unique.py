"""Unique keys: puts of few keys at once, by several processes, while their tasks run, fail, expire and move.

After each commit, the auditor compares entries, windows and records (audit/agreement.py).
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import RepartitionUnderWay, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.tasks import outlive
from tests.system.workloads.unique_checks import NAME, TTR_S, WINDOW_S, promises
from tests.system.workloads.unique_deeds import end, left, once, put

KINDS = ("fifottl", "utubettl", "limfifottl")
OVER_S = WINDOW_S + limits.CLOCK_SKEW_S + 2.0
"""After this time, each window is over by any clock, and swept."""


@workload(clients=2, steps=5)
def unique(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    random = simulation.random
    kind, partitions = random.choice(KINDS), random.choice((1, 1, 3))
    capacity = 6 if kind == "limfifottl" else None

    def opened(client: Client) -> TaskQueue:
        options = {"ttr": TTR_S, "capacity": capacity, "partitions": partitions}
        return TaskQueue.create(client.db, NAME, kind, if_not_exists="any", **options)  # type: ignore[arg-type]

    def put_some(client: Client, q: TaskQueue, thread: int) -> None:
        for step in range(size.steps):
            put(client, q, f"{client.name}.{thread}.{step}")
            client.pause(0.2)

    def produce(client: Client) -> None:
        q = opened(client)
        threads = [client.thread(partial(put_some, q=q, thread=n), f"thread-{n}") for n in range(2)]
        for thread in threads:
            thread.join()

    def work(client: Client) -> None:
        q = opened(client)
        for _ in range(2):
            with suppress(UnknownSession), Session(client.db, ttr=3) as session:
                for _ in range(size.steps):
                    once(client, q, session)

    def operate(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            client.pause(0.7)
            found = q.tasks(client.db, client.random.choice("r~!"), 3)
            if found:
                end(client, q, client.random.choice(("delete", "cancel")), found[-1].id)
            if partitions > 1 and client.random.random() < 0.3:
                with suppress(RepartitionUnderWay):
                    q.repartition(client.db, client.random.choice((2, 3, 5)))
            if client.random.random() < 0.1:
                client.call(NAME, "truncate", None, partial(q.truncate, client.db))

    def survive(client: Client) -> None:
        q = opened(client)
        outlive(client, q, lambda client, q, task: end(client, q, "ack", task))
        client.runtime.sleep(OVER_S)
        client.call(NAME, "left", None, lambda: run(client.db, partial(left, q)))

    simulation.client(operate, "operator")
    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    return [*promises(simulation.faults.clock_skew_s), no_watch_left_behind]
