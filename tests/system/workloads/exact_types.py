"""One process with handles of different types: takes pass over the values that do not fit theirs.

A value that a handle cannot read stays in its place, whole, also if it was delivered to a waiting take.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.exact_types_handles import NAME, TYPES, Items, Tasks, Unnamed
from tests.system.workloads.exact_types_process import Process

KINDS: Sequence[type[Items]] = (Items, Unnamed, Tasks)


@workload(
    clients=1, steps=25, never=("die", "stall", "slow_reply", "clock_skew_s"), wide=("BATCH_BYTES_MAX",)
)
def exact_types(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} {NAME}")
    kind, contended = random.choice(KINDS), random.choice(("staged", "simple"))

    def use(client: Client) -> None:
        handles = {type_: kind(client, type_, contended=contended) for type_ in TYPES}
        process = Process(client, handles)
        for _ in range(size.steps):
            client.call(NAME, "step", None, process.step)
        client.call(NAME, "end", None, process.end)

    simulation.client(use, "user-0")
    return [no_watch_left_behind]
