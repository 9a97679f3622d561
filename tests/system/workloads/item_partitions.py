"""A queue of items whose number of partitions changes under load: calls of all sorts meet each change."""

from collections.abc import Callable, Sequence

from fdbqueue.core.database import Database
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.item_partitions_checks import checks
from tests.system.workloads.item_partitions_deeds import (
    CLEAR,
    GIVE_BACK,
    HOLD,
    NAME,
    drain,
    look,
    opened,
    put,
    read,
    repartition,
    take,
)

WAYS = ((4, 2, 2), (4, 2, 1, 1, 4), (4, 2, 8), (2, 4, 1, 2))


@workload(clients=2, steps=4)
def item_partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(
        TAKES_PER_VISIT=random.choice((2, 8)),
        HOMES_CHOSEN_EVERY_S=random.choice((0.1, 5)),
        LOOK_EVERY_S=60,  # no look by time: a wake-up that is missed has no remedy
    )
    way, rest_s = random.choice(WAYS), random.choice((0.1, 0.5, 3))
    more = random.choice((None, None, None, HOLD, HOLD, GIVE_BACK, CLEAR))

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            put(client, q, value)
            client.runtime.sleep(client.random.choice((0.01, rest_s)))

    def consume(client: Client) -> None:
        use(client, opened(client), client.db)

    def use(client: Client, q: Queue, db: Database) -> None:
        for _ in range(size.steps):
            take(client, q, db, more == GIVE_BACK)
            client.pause(0.3)

    def consume_by_two(client: Client) -> None:
        """Use one handle with two databases, each in a thread of its own."""
        q = opened(client)
        with Database(client.db.engine, client.runtime) as second:
            threads = [client.thread(using(q, db), name) for name, db in (("a", client.db), ("b", second))]
            for thread in threads:
                thread.join()

    def using(q: Queue, db: Database) -> Callable[[Client], None]:
        return lambda client: use(client, q, db)

    def watch(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            does = read if more == HOLD and client.random.random() < 0.8 else look
            does(client, q)
            client.pause(0.3)
        if more == CLEAR:
            client.call(NAME, "clear", None, lambda: q.clear(client.db))

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(consume_by_two if number == 1 else consume, f"consumer-{number}")
    simulation.client(lambda client: repartition(client, opened(client), way), "partitioner")
    simulation.client(watch, "auditor")
    simulation.afterwards(drain, "survivor")
    return list(checks(set(simulation.faults.active), more))
