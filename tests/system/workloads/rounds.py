"""A fair queue without leases: a flood, tenants, waiters; an auditor looks at the rounds all the time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.errors import FairQueueFull
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.queues.fair.items import FairItems
from fdbqueue.queues.fair.queue import FairQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import (
    exact_statistics,
    no_key_left_behind,
    no_watch_left_behind,
    total_queue,
)
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from tests.system.workloads.by_key import fair_at_all_times, look, look_at_rounds, rounds_wait
from tests.system.workloads.callers import once
from tests.system.workloads.common import QUIET_S, SPACE, bounded, cramped, is_definition

NAME = "rounds"
FLOOD = "flood"


@workload(clients=3, steps=5)
def rounds(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    capacity = simulation.random.choice((None, None, 6))
    q = FairQueue(SPACE[NAME], key=key_of, capacity=capacity)

    def produce(values: Callable[[Client], list[str]]) -> Callable[[Client], None]:
        def body(client: Client) -> None:
            for value in values(client):
                put(client, q, value)
                client.pause(0.2)

        return body

    def consume(client: Client) -> None:
        for _ in range(3 * size.steps):
            get(client, q, client.random.choice((0, 0.5, 2)))

    def audit(client: Client) -> None:
        for _ in range(3 * size.steps):
            look(client, NAME, TaskKeys(SPACE[NAME]), q.size)
            look_at_rounds(client, NAME, TaskKeys(SPACE[NAME]))
            client.pause(0.3)

    def drain(client: Client) -> None:
        client.runtime.sleep(QUIET_S)
        look(client, NAME, TaskKeys(SPACE[NAME]), q.size)
        while get(client, q, 0) or get(client, q, 1):
            pass
        client.runtime.sleep(limits.RECEIPT_STALE_S)
        put(client, q, "the last")  # calls that leave a receipt, so that closing sweeps
        get(client, q, 0)

    simulation.client(produce(lambda _: [f"{FLOOD}/{n}" for n in range(3 * size.steps)]), FLOOD)
    for number in range(size.clients):
        tenant = produce(lambda client: [f"{client.name}/{n}" for n in range(size.steps)])
        simulation.client(tenant, f"tenant-{number}")
        simulation.client(consume, f"consumer-{number}")
    simulation.client(audit, "auditor")
    simulation.afterwards(drain, "drain")
    return [
        total_queue(NAME),
        exact_statistics(NAME),
        partial(rounds_wait, NAME, key_of, size.clients),
        partial(fair_at_all_times, NAME),
        bounded(),
        no_watch_left_behind,
        sound(q),
        no_key_left_behind(SPACE[NAME].key(), _stays),
        no_key_left_behind(DEFAULT_ROOT.key(), is_definition),
    ]


def key_of(value: str) -> str:
    return value.split("/")[0]


def put(client: Client, q: FairQueue, value: str) -> None:
    try:
        if client.random.random() < 0.7:
            client.call(NAME, "enqueue", [value], lambda: q.put(client.db, value))
        else:
            client.call(NAME, "enqueue", [value], lambda: once(client, lambda tr: q.put(tr, value)))
    except FairQueueFull:
        client.pause(0.1)


def get(client: Client, q: FairQueue, timeout: float) -> list[Any]:
    def body() -> list[Any]:
        if timeout or client.random.random() < 0.5:
            found, item = q.take_item(client.db, timeout)
        else:
            found, item = once(client, q.take_item)
        return [item] if found else []

    return client.call(NAME, "dequeue", 1, body)


def _stays(key: bytes, value: bytes) -> bool:
    """True for the three keys of an empty queue: the size (zero), the floor of the index, and the round."""
    keys = TaskKeys(SPACE[NAME])
    items = FairItems(Registry(), keys, codec_named("json"), None)
    return key in (items.floor, items.looking.round_key) or (key == keys.live and not any(value))
