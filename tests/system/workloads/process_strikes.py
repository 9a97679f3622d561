"""Faults at the moments when processes commit: kills, stops, flushes that fail, power cuts."""

from random import Random

from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Simulation
from tests.system.processes import PowerCut, processes_of

WRITERS_KILLED, BEHIND_MAX, STOP_S = 2, 2, 30.0
FAILS_P = 0.3  # of the runs
CUTS_MAX, CUT_S = 2, (0.005, 0.5)
STRIKE_S, NEAR_S = (0.005, 0.1), 0.02


def strike_near_commits(simulation: Simulation) -> bool:
    """Kill and stop processes while they commit or just after it, and one while it waits, in some runs.

    Return True if the disk fails too: then some results are unknown.
    """
    random = simulation.random
    active = set(simulation.faults.active) if random.random() < 0.5 else set()
    if "die" in active:
        simulation.kill("process-0", scattered(random, *STRIKE_S))
        for _ in range(WRITERS_KILLED):
            processes_of(simulation).kill_writer(scattered(random, *STRIKE_S), random.uniform(0, NEAR_S))
        behind = Random(f"{simulation.seed} behind")
        for _ in range(behind.randint(0, BEHIND_MAX)):
            processes_of(simulation).kill_behind_commit(scattered(behind, *STRIKE_S))
    if "stall" in active:
        processes_of(simulation).stop_writer(scattered(random, *STRIKE_S), random.uniform(0, NEAR_S), STOP_S)
    fails = random.random() < FAILS_P
    if fails:
        processes_of(simulation).fail_flush(scattered(random, *STRIKE_S))
    return fails


def cut_near_commits(simulation: Simulation) -> list[PowerCut]:
    """Cut the power at some moments, beside the one at the end; return the cuts as they come."""
    random = Random(f"{simulation.seed} power")
    cuts: list[PowerCut] = []
    for _ in range(random.randint(0, CUTS_MAX)):
        at_s = scattered(random, *CUT_S)
        simulation.scheduler.call_at(at_s, lambda: cuts.append(processes_of(simulation).power_cut(random)))
    return cuts
