"""Explores the commits of a few processes: schedules near the simplest one, and a strike at each moment.

The simplest schedule lets a task run until it waits. A *deviation* lets another task go on, at one choice of
the scheduler. A scenario has no other chance in it, so its run is given by deviations and strikes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from fdbqueue.testing import Checker, Client, Result, Simulation
from fdbqueue.testing.engine import NONE
from fdbqueue.testing.scheduler import POINT_S
from tests.system.processes import processes_of
from tests.system.workloads.processes import (
    POINTS_MAX,
    checks,
    interrupted,
    label,
    no_result_unknown,
    survives_power_cuts,
    tried,
)

NAMES = ("process-0", "process-1", "process-2")
GENERATION_BYTES = 300  # a commit or two
END_S, STOP_S = 1_000.0, 100.0
Strike = Callable[[Simulation], None]


class Script(Random):
    """The choices of a scheduler: the simplest ones, with deviations at some of them."""

    def __init__(self, deviations: Iterable[int] = ()) -> None:
        super().__init__(0)
        self.choices = 0
        self._deviations = set(deviations)

    def random(self) -> float:
        self.choices += 1
        return 0.0 if self.choices in self._deviations else 1 - 2**-53


def killed(name: str, point: int) -> Strike:
    return lambda simulation: simulation.kill(name, point * POINT_S)


def stopped(name: str, point: int) -> Strike:
    return lambda simulation: simulation.stop(name, point * POINT_S, STOP_S)


def explored(schedule: Random, *strikes: Strike, processes: int = 3, commits: int = 2) -> Result:
    """Run processes that commit at once, under strikes, and check all that they did."""

    def process(client: Client) -> None:
        for step in range(commits):
            tried(client, label(client, "main", step))

    return _run(schedule, dict.fromkeys(NAMES[:processes], process), strikes, [no_result_unknown])


def interrupted_at(point: int, schedule: Random, *, beside: int) -> Result:
    """Interrupt the only thread of a process, or one of several, at a moment of its second commit."""

    def first(client: Client) -> None:
        threads = [
            client.thread(partial(second, thread=str(number)), str(number)) for number in range(beside)
        ]
        tried(client, label(client, "main", 0))
        interrupted(client, label(client, "main", 1), point * POINT_S, is_alone=not beside)
        tried(client, label(client, "main", 2))
        for thread in threads:
            thread.join()

    def second(client: Client, thread: str = "main") -> None:
        for step in range(3):
            tried(client, label(client, thread, step))

    return _run(schedule, {NAMES[0]: first, NAMES[1]: second})


def _run(
    schedule: Random,
    processes: dict[str, Callable[[Client], object]],
    strikes: Iterable[Strike] = (),
    more: Iterable[Checker] = (),
) -> Result:
    simulation = Simulation(0, faults=NONE, schedule=schedule, points_max=POINTS_MAX)
    simulation.end_at(END_S)
    for name, process in processes.items():
        processes_of(simulation).add(process, name)
    simulation.limit(GENERATION_BYTES_MAX=GENERATION_BYTES)
    for strike in strikes:
        strike(simulation)
    return simulation.run(
        [*checks(simulation, is_calm=not strikes), survives_power_cuts(simulation, []), *more]
    )
