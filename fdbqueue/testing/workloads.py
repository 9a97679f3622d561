"""Workloads: a function each that adds clients to a simulation and returns its checkers.

To add one, write a module with a function under `@workload(...)`, and `--load` it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdbqueue.testing.simulation import Checker, Simulation


@dataclass(frozen=True)
class Size:
    """The size of a scenario: clients of each role, and steps of each client."""

    clients: int
    steps: int


Build = Callable[[Simulation, Size], Sequence[Checker]]


@dataclass(frozen=True)
class Workload:
    """A scenario. `never`: faults that its checkers do not allow for. `more`: faults that only some workloads
    have. `wide`: names of bounds that are never small in it.
    """

    name: str
    build: Build
    size: Size
    never: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


_workloads: dict[str, Workload] = {}


def workload(
    *, clients: int, steps: int, never: Sequence[str] = (), more: Sequence[str] = (), wide: Sequence[str] = ()
) -> Callable[[Build], Workload]:
    """Make the decorated function a workload, known by its name, with the size that it has by default."""

    def register(build: Build) -> Workload:
        size = Size(clients, steps)
        made = Workload(build.__name__, build, size, tuple(never), tuple(more), tuple(wide))
        _workloads[made.name] = made
        return made

    return register


def all_workloads() -> dict[str, Workload]:
    """Those registered so far, by name."""
    return dict(_workloads)
