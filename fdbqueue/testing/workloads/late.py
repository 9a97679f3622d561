"""Other workloads, with commits that end with 1039 and arrive late or never; they keep their checkers."""

from collections.abc import Sequence

from fdbqueue.testing.simulation import Checker, Simulation
from fdbqueue.testing.workloads import Size, Workload, workload
from fdbqueue.testing.workloads.acks import acks
from fdbqueue.testing.workloads.clearing import clearing
from fdbqueue.testing.workloads.combined import combined
from fdbqueue.testing.workloads.keyed import keyed
from fdbqueue.testing.workloads.named import named
from fdbqueue.testing.workloads.pipeline import pipeline
from fdbqueue.testing.workloads.proxies import proxies
from fdbqueue.testing.workloads.recipe import recipe
from fdbqueue.testing.workloads.rounds import rounds
from fdbqueue.testing.workloads.tasks import tasks
from fdbqueue.testing.workloads.waits import waits

_OTHERS: Sequence[Workload] = (
    acks,
    clearing,
    combined,
    keyed,
    named,
    pipeline,
    proxies,
    recipe,
    rounds,
    tasks,
    waits,
)


@workload(clients=2, steps=4, more=("version_changed",))
def late(simulation: Simulation, size: Size) -> Sequence[Checker]:
    other = simulation.random.choice(_OTHERS)
    return other.build(simulation, size)
