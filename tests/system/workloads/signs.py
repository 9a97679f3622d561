"""Other workloads, whose requests in waiting lines give signs of life, as on a cluster."""

from collections.abc import Sequence

from fdbqueue.testing.cases import Size, Workload, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.acks import acks
from tests.system.workloads.crossed import crossed
from tests.system.workloads.crowd import crowd
from tests.system.workloads.recipe import recipe
from tests.system.workloads.stops import stops
from tests.system.workloads.takeover import takeover
from tests.system.workloads.tasks import tasks
from tests.system.workloads.waits import waits

_OTHERS: Sequence[Workload] = (acks, crossed, crowd, recipe, stops, takeover, tasks, waits)


@workload(clients=2, steps=4)
def signs(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.gives_signs = True
    other = simulation.random.choice(_OTHERS)
    return other.build(simulation, size)
