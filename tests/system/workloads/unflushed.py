"""Processes with commits that wait for no flush beside durable ones; the power is cut as a commit returns."""

from collections.abc import Sequence
from functools import partial
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.processes import PowerCut, processes_of
from tests.system.workloads.power_checks import survives_power_cuts
from tests.system.workloads.process_checks import LATE, checks
from tests.system.workloads.process_strikes import FAILS_P, STRIKE_S
from tests.system.workloads.processes import END_S, POINTS_MAX, label, tried

CUTS_MAX = 6


@workload(clients=3, steps=4, never=("slow_reply",))
def unflushed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.end_at(END_S)
    simulation.scheduler.points_max = POINTS_MAX
    random, cuts = Random(f"{simulation.seed} power"), list[PowerCut]()
    late_p, cut_p = random.random(), random.choice((0.1, 0.5))

    def process(number: int, client: Client) -> None:
        for step in range(size.steps):
            is_late = client.random.random() < late_p
            tried(client, label(client, number, step) + (LATE if is_late else b""))
            if len(cuts) < CUTS_MAX and client.random.random() < cut_p:
                cuts.append(processes_of(simulation).power_cut(random))
            client.pause(0.05)

    names = [f"process-{number}" for number in range(size.clients)]
    for number, name in enumerate(names):
        processes_of(simulation).add(partial(process, number), name)
    fails = random.random() < FAILS_P
    if fails:
        processes_of(simulation).fail_flush(scattered(random, *STRIKE_S))
    return [*checks(simulation), survives_power_cuts(simulation, cuts, () if fails else names)]
