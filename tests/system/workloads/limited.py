"""Limited: two queues under shared limits, workers that die with slots, and an operator that changes them."""

from collections.abc import Sequence
from typing import Any

from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.limited_checks import (
    NAMES,
    PROMISES,
    SLOTS,
    STARTS,
    starts_in_bounds,
)
from tests.system.workloads.limited_clients import Opened, start

KINDS = ("fifottl", "bag", "utubettl", "fair")
SETS = ([SLOTS], [SLOTS], [STARTS], [SLOTS, STARTS])


@workload(clients=2, steps=4)
def limited(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    opened = Opened(random, KINDS, lambda: {"limits": random.choice(SETS)})
    under = {name for name, options in zip(NAMES, opened.options, strict=True) if STARTS in options["limits"]}

    def produce(client: Client, q: TaskQueue) -> None:
        for number in range(size.clients * size.steps):
            key: Any = {"key": number % 3} if q.kind in ("utubettl", "fair") else {}
            q.put(client.db, "x", delay=client.random.choice((0, 0, 0.5)), **key)
            client.pause(0.2)

    start(simulation, size, opened, produce)
    in_bounds = starts_in_bounds(lambda name, _: name in under)
    return [*map(exact_statistics, NAMES), *PROMISES, in_bounds, no_watch_left_behind]
