"""Cases: a workload with a seed and a size. Runs a case, and finds the smallest case that still fails."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from fdbqueue.testing.faults import Faults
from fdbqueue.testing.report import described
from fdbqueue.testing.simulation import Result, Simulation
from fdbqueue.testing.small_bounds import drawn
from fdbqueue.testing.workloads import Size, Workload

_SEEDS_PER_SIZE = 12


@dataclass(frozen=True)
class Case:
    """One repeatable run. `without` names the faults that are switched off. `small_bounds`: true if the seed
    may choose small bounds (small_bounds.py).
    """

    workload: Workload
    seed: int
    size: Size
    without: tuple[str, ...] = ()
    small_bounds: bool = False

    @classmethod
    def of(cls, workload: Workload, seed: int) -> "Case":
        return cls(workload, seed, workload.size)

    @property
    def faults(self) -> Faults:
        found = Faults.drawn(Random(f"{self.seed} faults"), self.workload.more)
        return found.without(*self.workload.never, *self.without)

    @property
    def bounds(self) -> dict[str, float]:
        """The small bounds of this run."""
        found = drawn(self.seed) if self.small_bounds else {}
        return {name: value for name, value in found.items() if name not in self.workload.wide}

    def run(self, detailed: bool = False) -> Result:
        simulation = Simulation(self.seed, faults=self.faults, detailed=detailed)
        simulation.limit(**self.bounds)
        return simulation.run(self.workload.build(simulation, self.size))

    def command(self) -> str:
        """Return the command line that repeats this case."""
        words = [
            f"--load {self.workload.build.__module__} --workload {self.workload.name} --seed {self.seed}"
        ]
        words += [f"--clients {self.size.clients} --steps {self.size.steps}"]
        words += [f"--without {name}" for name in self.without]
        words += ["--small-bounds"] if self.small_bounds else []
        return f"python -m fdbqueue.testing.simulate {' '.join(words)} --trace"


def shrunk(case: Case, patience_s: float = 30.0) -> Case:
    """Return the smallest case that still fails: first fewer clients and steps, then no small bounds, then
    fewer faults. The search ends after `patience_s`. A smaller scenario has other interleavings, so it tries
    several seeds for each size.
    """
    until = time.monotonic() + patience_s
    smallest = next((c for c in _smaller(case) if time.monotonic() < until and c.run().failed), case)
    if smallest.bounds:
        smallest = _if_it_fails(replace(smallest, small_bounds=False), smallest, until)
    for name in smallest.run().faults.active:
        smallest = _if_it_fails(replace(smallest, without=(*smallest.without, name)), smallest, until)
    return smallest


def _if_it_fails(smaller: Case, case: Case, until: float) -> Case:
    return smaller if time.monotonic() < until and smaller.run().failed else case


def _smaller(case: Case) -> Iterator[Case]:
    sizes = [Size(c, s) for c in range(1, case.size.clients + 1) for s in range(1, case.size.steps + 1)]
    for size in sorted(sizes, key=lambda size: size.clients * size.steps)[:-1]:
        for seed in range(case.seed, case.seed + _SEEDS_PER_SIZE):
            yield replace(case, seed=seed, size=size)


def check(workload: Workload, seeds: Iterable[int]) -> None:
    """Run `workload` once per seed.

    Raises: AssertionError with the smallest failing case and its trace.
    """
    for seed in seeds:
        case = Case.of(workload, seed)
        if case.run().failed:
            smallest = shrunk(case)
            raise AssertionError(f"{smallest.command()}\n{described(smallest.run(detailed=True))}")
