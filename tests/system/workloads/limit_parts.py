"""Two queues under a limit of slots and a rate, of all tasks that name it or of each key apart."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.limited import (
    BURST,
    KEYS,
    NAMES,
    PER_S,
    PROMISES,
    RATE,
    SLOTS,
    STARTS,
    WITH_LANES,
    Opened,
    none_is_held_up,
    pass_by_key,
    pass_by_name,
    put_under,
    start,
    starts_in_bounds,
    wake_in_turn,
    wakes_reach_other_queues,
)

NAMED: Sequence[Any] = (None, [SLOTS], [SLOTS], [SLOTS], [SLOTS, STARTS])
KEYED: Sequence[Any] = (None, *({SLOTS: key} for key in KEYS), *({SLOTS: key, STARTS: None} for key in KEYS))
ITS_RATE = {"rate": RATE, "per": PER_S, "burst": BURST}


@workload(clients=2, steps=4)
def limit_parts(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """As `laned` and `limit_keys`, but the limit of slots has a rate, too; in some runs it comes and goes."""
    cramped(simulation)
    random = simulation.random
    per_key, stays = random.random() < 0.7, random.random() < 0.6
    if random.random() < 0.5:
        few = random.randint(1, 2)
        simulation.limit(LANES_TURNED=few - 1, KEYS_SETTLED=few, KEY_ROWS_WALKED=2)

    def rate(drawn: Random) -> dict[str, Any]:
        return ITS_RATE if stays or drawn.random() < 0.5 else {}

    opened = Opened(random, WITH_LANES, lambda: {"task_limits": [SLOTS, STARTS]}, per_key=per_key, rate=rate)
    produce = partial(put_under, KEYED if per_key else NAMED, size.clients * size.steps)
    wake = partial(wake_in_turn, ({SLOTS: "f"} if per_key else [SLOTS], [SLOTS]), per_key)
    start(simulation, size, opened, produce, pass_by_key if per_key else pass_by_name, wake)
    bounds = [starts_in_bounds(partial(_is_under, key)) for key in (None, *KEYS) if stays]
    ends = (none_is_held_up, wakes_reach_other_queues)
    return [*map(exact_statistics, NAMES), *PROMISES, *bounds, *ends, no_watch_left_behind]


def _is_under(key: Any, _: str, task: Any) -> bool:
    """True for a task of a producer. Those of the end of a run start when the limit has no rate any more."""
    return task.data == "x" and SLOTS in task.limits and bool(task.limits[SLOTS] == key)
