"""A verification beside live clients, which use tasks, items and elements, and die."""

from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.sessions.session import Session
from fdbqueue.operate.verify.values import Verification
from fdbqueue.operate.verify.verify import verify
from fdbqueue.queues.elements.simple import SimpleElementQueue
from fdbqueue.queues.fair.queue import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound, told
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import SPACE, cramped, values_of
from tests.system.workloads.explained import KINDS, disturb, put_one, queue_of
from tests.system.workloads.stage import play, repeating

NAME, PLAIN, ELEMENTS, FAIR = "verified", "items", "elements", "tenants"


@workload(clients=2, steps=4)
def verified(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(
        SLICE_KEYS_MAX=random.randint(1, 4),
        COUNTED_ROWS=random.randint(1, 3),
        COUNTED_S=random.choice((0.0, 2.0)),
        DUE_BATCH=3,
        VERB_BATCH=3,
    )
    queue = queue_of(NAME, random.choice(KINDS))

    def use_tasks(client: Client, q: TaskQueue, session: Session) -> None:
        for value in values_of(client, size.steps):
            put_one(client, q, value)
            disturb(client, q, session)
            client.pause(0.2)

    def use_items(client: Client) -> None:
        plain, fair = Queue.named(client.db, PLAIN), tenants()
        for value in values_of(client, size.steps):
            plain.enqueue(client.db, value * client.random.choice((1, 9)))
            fair.put(client.db, value * client.random.choice((1, 99)))
            for take in (plain.dequeue, fair.get):
                if client.random.random() < 0.7:
                    take(client.db, timeout=client.random.choice((0, 1)))
            client.pause(0.2)

    def use_elements(client: Client) -> None:
        elements = SimpleElementQueue.named(client.db, ELEMENTS)
        for value in values_of(client, size.steps):
            name = elements.add(client.db, value.encode())
            if elements.lock(client.db, name) and client.random.random() < 0.5:
                elements.remove(client.db, name)
            client.pause(0.2)

    roles = {
        "worker-": queue.working(1, use_tasks, ttrs_s=(3, 20), after_death_s=0.1),
        "consumer": use_items,
        "holder": use_elements,
        "verifier": repeating(size.steps, look, 0.5),
    }
    play(simulation, size, roles)
    return [nothing_found, sound(tenants()), no_watch_left_behind]


def look(client: Client) -> None:
    client.call(NAME, "verify", None, partial(everything, client.db))


def tenants() -> FairQueue:
    return FairQueue(SPACE[FAIR], key=lambda item: item[:1])


def everything(database: Database) -> Sequence[Verification]:
    return verify(database), verify(database, tenants())


def nothing_found(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no verification beside the clients has found anything."""
    for operation in trace.of(NAME, "verify"):
        yield from told(*(operation.result or ()))
