"""A test that is a workload: pytest runs it once for each seed."""

from collections.abc import Iterable
from typing import Any

import pytest

from fdbqueue.testing import Size, Workload
from fdbqueue.testing.cases import Build, Case, described, shrunk


class Simulated(pytest.Item):
    """Runs a workload. The message of a failure has the seed, and the smallest case that fails."""

    def __init__(self, *, build: Build, mark: pytest.Mark, **rest: Any) -> None:
        super().__init__(**rest)
        self._build = build
        self.own_markers.extend(getattr(build, "pytestmark", ()))
        self._of(**mark.kwargs)

    def _of(
        self, seeds: int = 100, first: int = 0, clients: int = 3, steps: int = 5, never: Iterable[str] = ()
    ) -> None:
        self._first, self._number = first, seeds
        self._workload = Workload(self.name, self._build, Size(clients, steps), tuple(never))

    def runtest(self) -> None:
        for seed in self._seeds():
            case = Case.of(self._workload, seed)
            if case.run().failed:
                smallest = shrunk(case)
                again = f"pytest {self.nodeid} --fdbqueue-seed {seed}"
                raise AssertionError(f"seed {seed}\n{again}\n{described(smallest.run(detailed=True))}")

    def _seeds(self) -> Iterable[int]:
        one, number = self.config.getoption("fdbqueue_seed"), self.config.getoption("fdbqueue_seeds")
        if one is not None:
            return (one,)
        return range(self._first, self._first + (self._number if number is None else number))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The trace of the simulation, in place of that of the simulator."""
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        code = getattr(self._build, "__code__", None)
        return self.path, None if code is None else code.co_firstlineno - 1, self.name
