"""Realistic bugs, each a line or two of the project's own source changed, and how to plant one.

The function's code is exchanged in place, so that each reference to it runs the bug. The old line
must occur exactly once: a refactoring that moves it fails the test instead of planting nothing.

`planted.txt` lists the bugs. The first line of each is `what`. The second one has the fields `function`,
`workload`, `seeds_max` and `near`, then `small` for small bounds, and `by=` with the checkers that prove a
promise of docs/tests.md by this bug. `-` begins the lines of `old`, and `+` those of `new`, which is `pass`
without any.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fdbqueue.testing import Case
from tests.system.workloads import all_workloads


@dataclass(frozen=True)
class Plant:
    """A bug, its place, and the number of seeds of a workload within which it must be found.

    `near` is a seed that found it when it was planted; it is tried first, as the search may take a minute.
    `small_bounds`: true if the runs are those of new seeds, some with small bounds. `by`: names of
    checkers that find it.
    """

    what: str
    function: Callable[..., Any]
    old: str
    new: str
    workload: str
    seeds_max: int
    near: int = 0
    small_bounds: bool = False
    by: tuple[str, ...] = ()

    def case(self, seed: int) -> Case:
        return replace(Case.of(all_workloads()[self.workload], seed), small_bounds=self.small_bounds)

    @property
    def where(self) -> str:
        return f"{self.function.__module__.removeprefix('fdbqueue.')}.{self.function.__qualname__}"


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Plant the bug for the duration of the context."""
    function: Any = plant.function
    healthy = function.__code__
    function.__code__ = _sick(plant).__code__
    try:
        yield
    finally:
        function.__code__ = healthy


def _sick(plant: Plant) -> Any:
    source = textwrap.dedent(inspect.getsource(plant.function))
    found = source.count(plant.old)
    assert found == 1, f"{plant.where} contains {plant.old!r} {found} times: adapt the planted bug"
    namespace: dict[str, Any] = {}
    code = compile(source.replace(plant.old, plant.new), f"<{plant.what}>", "exec")
    exec(code, dict(plant.function.__globals__), namespace)
    return namespace[plant.function.__name__]


def listed(path: Path) -> Iterator[Plant]:
    for entry in re.findall(r"^\w.*(?:\n  .*)+", path.read_text(), re.MULTILINE):
        what, fields, *changes = entry.splitlines()
        function, workload, seeds_max, near, *more = fields.split()
        by = [word.removeprefix("by=").split(",") for word in more if word.startswith("by=")]
        old, new = ([line[4:] for line in changes if line[2] == sign] for sign in "-+")
        yield Plant(
            what,
            resolve_name(function),
            "\n".join(old),
            "\n".join(new or ["pass"]),
            workload,
            int(seeds_max),
            int(near),
            "small" in more,
            tuple(chain.from_iterable(by)),
        )


PLANTS = tuple(listed(Path(__file__).with_suffix(".txt")))
