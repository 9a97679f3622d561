"""Other workloads, with commits that end with 1039 and arrive late or never; they keep their checkers."""

from collections.abc import Sequence

from fdbqueue.testing.cases import Size, Workload, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.acks import acks
from tests.system.workloads.clearing import clearing
from tests.system.workloads.combined import combined
from tests.system.workloads.crossed import crossed
from tests.system.workloads.crowd import crowd
from tests.system.workloads.fairness import rounds
from tests.system.workloads.keyed import keyed
from tests.system.workloads.named import named
from tests.system.workloads.pipeline import pipeline
from tests.system.workloads.proxies import proxies
from tests.system.workloads.recipe import recipe
from tests.system.workloads.stops import stops
from tests.system.workloads.takeover import takeover
from tests.system.workloads.tasks import tasks
from tests.system.workloads.waits import waits

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
_WAITING: Sequence[Workload] = (acks, crossed, crowd, recipe, stops, takeover, tasks, waits)


@workload(clients=2, steps=4, more=("version_changed",))
def late(simulation: Simulation, size: Size) -> Sequence[Checker]:
    other = simulation.random.choice(_OTHERS)
    return other.build(simulation, size)


@workload(clients=2, steps=4)
def signs(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.gives_signs = True
    other = simulation.random.choice(_WAITING)
    return other.build(simulation, size)
