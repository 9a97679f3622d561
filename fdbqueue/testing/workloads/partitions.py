"""A task queue whose number of partitions changes under load: calls of all sorts meet each change."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.errors import (
    UnknownSession,
)
from fdbqueue.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.workloads import Size, workload
from fdbqueue.testing.workloads.common import cramped, or_a_bag, values_of
from fdbqueue.testing.workloads.partitions_checks import NAME, checks
from fdbqueue.testing.workloads.partitions_deeds import by_id, once, outlive, put, repartition

KINDS = ("fifottl", "utubettl", "utubettl", "fair")
WAYS = ((4, 2), (4, 2, 1), (4, 2, 8), (2, 4, 1))


@workload(clients=2, steps=4)
def partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    in_a_hurry(simulation)
    kind, way = or_a_bag(simulation, random.choice(KINDS)), random.choice(WAYS)
    concurrency, pauses = random.choice((1, 1, 2)), random.random() < 0.3
    most = concurrency if kind == "utubettl" else 1
    begun, ids, rest_s = random.choice((1, 1, 2)), list[str](), random.choice((0.1, 0.5, 3))

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(
            client.db, NAME, kind, ttr=2, key_concurrency=most, partitions=begun, if_not_exists=True
        )

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            ids.extend(put(client, q, value)[:1])
            client.runtime.sleep(client.random.choice((0.01, rest_s)))

    def work(client: Client) -> None:
        q = opened(client)
        for _ in range(2):
            with suppress(UnknownSession), Session(client.db, ttr=3) as session:
                for _ in range(size.steps):
                    once(client, q, session)

    def change(client: Client) -> None:
        repartition(client, opened(client), way)

    def operate(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            client.pause(0.5)
            does: list[Callable[[], Any]] = [partial(q.kick, client.db, 4), partial(by_id, client, q, ids)]
            if pauses:
                does += [partial(q.pause, client.db), partial(q.resume, client.db)]
            client.random.choice(does)()
        q.resume(client.db)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(change, "partitioner")
    simulation.client(operate, "operator")
    simulation.afterwards(lambda client: outlive(client, opened(client)), "survivor")
    return list(checks(set(simulation.faults.active), pauses))


def in_a_hurry(simulation: Simulation) -> None:
    """Set small bounds, and short times between looks."""
    random = simulation.random
    simulation.limit(
        DUE_BATCH=3,
        VERB_BATCH=3,
        KEY_LEVEL_MIN=1,
        KEYS_LOOKED_AT_MAX=random.choice((1, 2, 100)),
        TAKES_PER_VISIT=random.choice((2, 8)),
        LOOKS_PER_CLEARING=2,
        HOMES_CHOSEN_EVERY_S=random.choice((0.1, 5)),
        PARTITIONS_LOWERED_EVERY_S=random.choice((0.5, 60)),
        LOOK_EVERY_S=60,  # no look by time: a wake-up that is missed has no remedy
    )
