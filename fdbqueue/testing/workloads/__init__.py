"""Workloads: a function each that adds clients to a simulation and returns its checkers.

To add one, write a file with a function under `@workload(...)` and import it in `all_workloads`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

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


_MODULES = (
    "acks",
    "agreed",
    "awaited_recipe",
    "awaited_tasks",
    "awaited_waits",
    "bank",
    "batches",
    "bounded",
    "cancels",
    "clearing",
    "closing",
    "combined",
    "composed",
    "crossed",
    "crowd",
    "damaged",
    "doubted",
    "elements",
    "emptied",
    "exact",
    "exact_defaults",
    "exact_elements",
    "exact_fair",
    "exact_groups",
    "exact_items",
    "exact_line",
    "exact_mixed",
    "exact_partitions",
    "exact_persistent",
    "exact_schedules",
    "exact_sessions",
    "exact_types",
    "exact_worker",
    "explained",
    "fairness",
    "fleet",
    "follows",
    "groups",
    "holding",
    "hooked",
    "keyed",
    "interrupted_waits",
    "interrupts",
    "item_partitions",
    "joined",
    "laned",
    "lasting",
    "late",
    "limit_keys",
    "limited",
    "named",
    "order",
    "outages",
    "paired",
    "paired_groups",
    "paired_limits",
    "paired_line",
    "paired_partitions",
    "paired_persistent",
    "paired_schedules",
    "paired_sessions",
    "partitions",
    "pipeline",
    "processes",
    "poisoned",
    "proxies",
    "receipts",
    "recipe",
    "retained",
    "redriven",
    "results",
    "rings",
    "rounds",
    "schedules",
    "serial",
    "several",
    "sharing",
    "steps",
    "stops",
    "takeover",
    "tasks",
    "temporary",
    "together",
    "told",
    "unavailable",
    "unflushed",
    "unique",
    "unwanted",
    "verified",
    "waits",
    "weighty",
)
_workloads: dict[str, Workload] = {}


def workload(
    *,
    clients: int,
    steps: int,
    never: Sequence[str] = (),
    more: Sequence[str] = (),
    wide: Sequence[str] = (),
) -> Callable[[Build], Workload]:
    """Make the decorated function a workload, known by its name, with the size that it has by default."""

    def register(build: Build) -> Workload:
        size = Size(clients, steps)
        made = Workload(build.__name__, build, size, tuple(never), tuple(more), tuple(wide))
        _workloads[made.name] = made
        return made

    return register


def all_workloads() -> dict[str, Workload]:
    """Those that come with fdbqueue, and those registered since, by name."""
    for module in _MODULES:
        import_module(f"{__name__}.{module}")
    return dict(_workloads)
