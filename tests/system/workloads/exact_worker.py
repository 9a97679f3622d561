"""A worker and a plain model: each attempt finds the counts, the history and the steps of those before it.

The handler ends each attempt by a deed of its own choice, in the model, too. So the next attempt, the hooks,
the tally and the queue at the end are known. Then all buried tasks are kicked for a second worker.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fdbqueue.fleet.hooks import Hooks
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.exact_worker_deeds import Handler
from tests.system.workloads.exact_worker_looks import look_at_the_end
from tests.system.workloads.exact_worker_model import NAME, Plan, World
from tests.system.workloads.fleet import ended

KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("fifottl", {}),
    ("fifottl", {"partitions": 2}),
    ("utubettl", {}),
    ("limfifottl", {"capacity": 1_000}),
    ("fair", {}),
    ("bag", {}),
)
KEYED = ("utubettl", "fair")
RESULT_TTL_S = 1e6


# An answer that does not come makes the worker pause, and a process that stands still loses leases.
@workload(clients=1, steps=6, never=("die", "stall", "slow_reply", "future_version", "clock_skew_s"))
def exact_worker(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} exact worker")
    simulation.limit(DUE_BATCH=random.choice((1, 3, 8)), VERB_BATCH=3, FAILURES_KEPT=random.choice((1, 3)))
    kind, options = random.choice(KINDS)
    plan = Plan.drawn(random)

    def use(client: Client) -> None:
        q = TaskQueue.create(client.db, NAME, kind, ttr=60.0, if_not_exists=True, **options)
        world = World(client, q, plan)
        for number in range(2 * size.steps):
            wants = random.choice((None, RESULT_TTL_S))
            key = f"{number % 3}" if kind in KEYED else None
            task = q.put(client.db, f"{number}", key=key, result_ttl=wants)
            world.add(task, wants_result=wants is not None)
        work(world, Handler(world).handle)
        look_at_the_end(world)
        world.kick(q.kick(client.db, 2 * size.steps))
        work(world, Handler(world).succeed)
        look_at_the_end(world)

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")
    return [exact_statistics(NAME), no_watch_left_behind]


def work(world: World, handler: Callable[..., object]) -> None:
    plan = world.plan
    names = ("succeeded", "retried", "snoozed", "buried", "lease_lost", "cancelled")
    worker = Worker(
        world.client.db,
        world.q,
        handler,
        hooks=Hooks(**dict.fromkeys(names, world.told)),
        threads=plan.threads,
        max_attempts=plan.max_attempts,
        backoff=Backoff(plan.first_s, plan.growth, plan.cap_s),
        timeout_s=plan.timeout_s,
    )
    worker.start(until_empty=True)
    ended(worker)
    world.require_tally(worker.status())
