"""A task queue whose number of partitions changes under load: calls of all sorts meet each change."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, or_a_bag, values_of
from tests.system.workloads.partitions_checks import NAME, checks
from tests.system.workloads.partitions_deeds import by_id, once, outlive, put, repartition
from tests.system.workloads.partitions_more import More

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
    more = More.drawn(simulation.seed, kind)

    def opened(client: Client) -> TaskQueue:
        options: dict[str, Any] = {
            "ttr": 2,
            "key_concurrency": most,
            "capacity": more.capacity,
            "partitions": begun,
        }
        return TaskQueue.create(client.db, NAME, more.kind, if_not_exists="any", **options)

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            ids.extend(put(client, q, value, more)[:1])
            client.runtime.sleep(client.random.choice((0.01, rest_s)))

    def work(client: Client) -> None:
        work_with(opened(client), client.db, size.steps, client)

    def work_by_two(client: Client) -> None:
        """Work with one handle in two threads, each with a database of its own."""
        q = opened(client)
        with Database(client.db.engine, client.runtime) as second:
            bodies = [partial(work_with, q, db, size.steps) for db in (client.db, second)]
            threads = [client.thread(body, f"{number}") for number, body in enumerate(bodies)]
            for thread in threads:
                thread.join()

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
        simulation.client(work_by_two if more.by_two and number else work, f"worker-{number}")
    simulation.client(change, "partitioner")
    simulation.client(operate, "operator")
    simulation.afterwards(lambda client: outlive(client, opened(client)), "survivor")
    return list(checks(set(simulation.faults.active), pauses))


def work_with(q: TaskQueue, db: Database, steps: int, client: Client) -> None:
    """Take tasks in two sessions, one after the other."""
    for _ in range(2):
        with suppress(UnknownSession), Session(db, ttr=3) as session:
            for _ in range(steps):
                once(client, q, session, db)


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
