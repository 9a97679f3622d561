"""Element queues: workers that hold locks for too long, or renew them, while others purge, add and look."""

from collections.abc import Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.runtime import Runtime
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import bounded_transactions, exact_statistics, no_key_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from tests.system.workloads.common import KEY_BYTES, SPACE, cramped, values_of
from tests.system.workloads.element_checks import (
    NAME,
    all_done_once,
    counted,
    look,
    no_young_lock_is_lost,
    nothing_is_missed,
)
from tests.system.workloads.element_holders import at_once, desks_of, hold


class Colliding(ElementQueue):
    """Tries the same name first for all elements of one second."""

    def _new_name(self, runtime: Runtime) -> str:
        return f"{super()._new_name(runtime)[:17]}000007"


@workload(clients=2, steps=4)
def elements(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    kind = simulation.random.choice((Colliding, ElementQueue))
    # The life of a lock in virtual time, mostly about that of a call. The skew of the clocks is added below.
    lasts_s = simulation.random.choice((0.002, 0.005, 0.02, 1))
    maxlock_s = lasts_s + simulation.faults.clock_skew_s

    desks = desks_of(simulation.seed, [f"worker-{number}" for number in range(size.clients)])

    def opened() -> ElementQueue:
        return kind(SPACE[NAME], {"body": "string"}, maxelts=3)

    def produce(client: Client) -> None:
        q = opened()
        for value in values_of(client, size.steps):
            client.call(NAME, "put", value, partial(q.add, client.db, {"body": value}))
            client.pause(client.random.choice((0.01, 0.5)))

    def work(client: Client) -> None:
        q = opened()
        for _ in range(2 * size.steps):
            hold(client, q, maxlock_s, desks)
            if client.random.random() < 0.3:
                at_once(client, q, q.first(client.db))

    def purge(client: Client) -> None:
        q = opened()
        for _ in range(4 * size.steps):
            q.purge(client.db, maxlock=maxlock_s)
            client.runtime.sleep(client.random.choice((0, 0, maxlock_s / 2, maxlock_s)))

    def survive(client: Client) -> None:
        q = opened()
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted, q)))
        client.runtime.sleep(maxlock_s + 2 * limits.CLOCK_SKEW_S)
        q.purge(client.db, maxlock=maxlock_s)
        for name in q.names(client.db):
            at_once(client, q, name)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(purge, "purger")
    simulation.client(lambda client: look(client, opened(), size.steps), "auditor")
    simulation.afterwards(survive, "survivor")
    keys_max = 3 * limits.BATCH_ITEMS_MAX + 8
    return [
        all_done_once,
        no_young_lock_is_lost(lasts_s),
        nothing_is_missed,
        exact_statistics(NAME),
        sound(opened()),
        no_key_left_behind(SPACE[NAME].key(), lambda _, value: not any(value)),  # the count, zero
        bounded_transactions(keys_max, keys_max, limits.BATCH_BYTES_MAX + keys_max * KEY_BYTES),
    ]
