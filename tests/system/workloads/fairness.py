"""Fair queues, of tasks and of items: small tenants do not wait long beside a flood."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.errors import FairQueueFull, NotTaken, UnknownSession
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.sessions.session import Session
from fdbqueue.queues.fair import FairItems, FairQueue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_key_left_behind, no_watch_left_behind, total_queue
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import sound
from tests.system.workloads.by_key import fair_at_all_times, look, look_at_rounds, rounds_wait
from tests.system.workloads.common import (
    QUIET_S,
    SPACE,
    bounded,
    cramped,
    in_batches,
    is_definition,
    once,
    values_of,
)
from tests.system.workloads.stage import Roles, Tasks, play, remaining, repeating, total

NAME = "fairness"
FLOOD = "flood"
ROUNDS = "rounds"


@workload(clients=2, steps=5)
def fairness(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A fair task queue: one tenant's flood, small tenants, and several workers."""
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    queue = Tasks(NAME, "fair", ttr=600)

    def flood(client: Client, q: TaskQueue) -> None:
        for start in range(0, 4 * size.steps, size.steps):
            put(client, q, [f"{FLOOD}.{start + n}" for n in range(size.steps)])

    def trickle(client: Client, q: TaskQueue) -> None:
        for values in in_batches(client, values_of(client, size.steps)):
            put(client, q, values)
            client.pause(0.3)

    def work(client: Client, q: TaskQueue) -> None:
        with Session(client.db, ttr=60) as session:
            for _ in range(3 * size.steps):
                take(client, q, session)

    roles = {
        FLOOD: queue.using(flood),
        "tenant-": queue.using(trickle),
        "worker-": queue.using(work),
        "auditor": queue.repeating(size.steps, audit, 0.3),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    fair = [partial(rounds_wait, NAME, key_of, size.clients), partial(fair_at_all_times, NAME)]
    return [total_queue(NAME), exact_statistics(NAME), *fair, no_watch_left_behind]


def audit(client: Client, q: TaskQueue) -> None:
    look(client, NAME, TaskKeys(q.contents), partial(total, q))
    look_at_rounds(client, NAME, TaskKeys(q.contents))


def survive(client: Client, q: TaskQueue) -> None:
    with Session(client.db, ttr=600) as session:
        for _ in remaining(client, q):
            take(client, q, session)
    look(client, NAME, TaskKeys(q.contents), partial(total, q))


def key_of(value: str) -> str:
    """Return the task key of a value: one for the flood, one for each small tenant, which comes and goes."""
    return value.partition(".")[0]


def put(client: Client, q: TaskQueue, values: Sequence[str]) -> None:
    key = key_of(values[0])
    client.call(NAME, "enqueue", list(values), lambda: q.put_many(client.db, values, key=key))


def take(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task and ack it."""

    def body() -> list[str]:
        task = q.take(client.db, 0.5, session=session)
        if task is None:
            return []
        q.ack(client.db, task)
        return [task.data]

    # It stalled, so its lease is over or its session is dead.
    with suppress(NotTaken, UnknownSession):
        client.call(NAME, "dequeue", 1, body)


@workload(clients=3, steps=5)
def rounds(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A fair queue without leases: a flood, tenants, waiters; an auditor looks at the rounds all the time."""
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    capacity = simulation.random.choice((None, None, 6))
    q = FairQueue(SPACE[ROUNDS], key=tenant_of, capacity=capacity)
    keys = TaskKeys(SPACE[ROUNDS])

    def produce(count: int, client: Client) -> None:
        for number in range(count):
            put_item(client, q, f"{client.name}/{number}")
            client.pause(0.2)

    def consume(client: Client) -> None:
        get(client, q, client.random.choice((0, 0.5, 2)))

    def audit(client: Client) -> None:
        look(client, ROUNDS, keys, q.size)
        look_at_rounds(client, ROUNDS, keys)

    def drain(client: Client) -> None:
        client.runtime.sleep(QUIET_S)
        look(client, ROUNDS, keys, q.size)
        while get(client, q, 0) or get(client, q, 1):
            pass
        client.runtime.sleep(limits.RECEIPT_STALE_S)
        put_item(client, q, "the last")  # calls that leave a receipt, so that closing sweeps
        get(client, q, 0)

    roles: Roles = {
        FLOOD: partial(produce, 3 * size.steps),
        "tenant-": partial(produce, size.steps),
        "consumer-": repeating(3 * size.steps, consume),
        "auditor": repeating(3 * size.steps, audit, 0.3),
    }
    play(simulation, size, roles, {"drain": drain})
    return [
        total_queue(ROUNDS),
        exact_statistics(ROUNDS),
        partial(rounds_wait, ROUNDS, tenant_of, size.clients),
        partial(fair_at_all_times, ROUNDS),
        bounded(),
        no_watch_left_behind,
        sound(q),
        no_key_left_behind(SPACE[ROUNDS].key(), _stays),
        no_key_left_behind(DEFAULT_ROOT.key(), is_definition),
    ]


def tenant_of(value: str) -> str:
    return value.split("/")[0]


def put_item(client: Client, q: FairQueue, value: str) -> None:
    try:
        if client.random.random() < 0.7:
            client.call(ROUNDS, "enqueue", [value], lambda: q.put(client.db, value))
        else:
            client.call(ROUNDS, "enqueue", [value], lambda: once(client, lambda tr: q.put(tr, value)))
    except FairQueueFull:
        client.pause(0.1)


def get(client: Client, q: FairQueue, timeout: float) -> list[Any]:
    def body() -> list[Any]:
        if timeout or client.random.random() < 0.5:
            found, item = q.take_item(client.db, timeout)
        else:
            found, item = once(client, q.take_item)
        return [item] if found else []

    return client.call(ROUNDS, "dequeue", 1, body)


def _stays(key: bytes, value: bytes) -> bool:
    """True for the three keys of an empty queue: the size (zero), the floor of the index, and the round."""
    keys = TaskKeys(SPACE[ROUNDS])
    items = FairItems(Registry(), keys, codec_named("json"), None)
    return key in (items.floor, items.looking.round_key) or (key == keys.live and not any(value))
