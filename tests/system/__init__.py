"""The project's own test system: workloads, and the judge of each simulation that a process runs."""

from fdbqueue.testing import simulation
from fdbqueue.testing.simulation import Simulation
from fdbqueue.testing.trace import Watch


def judge(run: Simulation) -> Watch:
    from tests.system.judge import Judge  # late: it stands on modules of this package

    return Judge(run)


if judge not in simulation.watches:
    simulation.watches.append(judge)
