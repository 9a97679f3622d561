"""Judges: whether the tests, or some seeds of the simulation, find a mutant."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.readers import Reader, Readers
from tests.mutants.workshop import PYTEST, Workshop
from tests.system.nearness import near

TESTS_MAX = 400
START_S = 20.0
"""Time for the start of a program on a loaded machine."""
FIRST_SEED = 5_000_000
"""Seeds that no other test uses."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """Seconds that one mutant may take: of the recorded times of its tests, and of CPU in the simulation."""

    tests_s: float = 40.0
    simulation_s: float = 20.0


@dataclass(frozen=True)
class Judgement:
    """`by`: the test or the workload that finds the mutant; empty if none does."""

    judge: str
    by: str
    seconds: float
    readers: int
    """Tests or workloads that run the changed lines."""

    @property
    def killed(self) -> bool:
        return bool(self.by)


Judge = Callable[[Mutant], Judgement]


class Judges:
    """Call `tests` or `simulation` while the workshop holds the mutant."""

    def __init__(self, workshop: Workshop, readers: Readers, limits: Limits) -> None:
        self._workshop = workshop
        self._readers = readers
        self._limits = limits

    def tests(self, mutant: Mutant) -> Judgement:
        began, readers = time.monotonic(), self._readers.tests_of(mutant)
        chosen = chosen_tests(readers, self._limits.tests_s)
        by = self._found_by_tests([name for name, _ in chosen]) if chosen else ""
        return Judgement("tests", by, round(time.monotonic() - began, 1), len(readers))

    def simulation(self, mutant: Mutant) -> Judgement:
        began, readers = time.monotonic(), self._readers.workloads_of(mutant)
        # The seeds that were recorded may have missed a line that only a rare state runs.
        names = [name for name, _ in readers] or sorted(near([mutant.file]))
        by = self._found_by_simulation(mutant.file, names) if names else ""
        return Judgement("simulation", by, round(time.monotonic() - began, 1), len(readers))

    def _found_by_tests(self, tests: Sequence[str]) -> str:
        listed = self._workshop.root / "chosen-tests"
        listed.write_text("\n".join(tests))
        words = [*PYTEST, "-x", "--tb=no", "--timeout=30", f"@{listed.name}"]
        ended = self._workshop.run(words, START_S + 3 * self._limits.tests_s)
        if ended.status is None:
            return "time limit"
        if ended.status == 0:
            return ""
        failed = _FAILED.search(ended.output)
        return failed[1] if failed is not None else _last_line(ended.output)

    def _found_by_simulation(self, path: str, workloads: Sequence[str]) -> str:
        seconds = self._limits.simulation_s
        words = ["-m", "tests.mutants.simulated", path, str(seconds), str(FIRST_SEED), *workloads]
        ended = self._workshop.run(words, START_S + 4 * seconds)
        if ended.status is None:
            return "time limit"
        return _last_line(ended.output) if ended.status else ""


def chosen_tests(readers: Sequence[Reader], seconds: float) -> list[Reader]:
    """The first readers, at most `seconds` together, without those that do not fit in; at least one."""
    chosen: list[Reader] = []
    total = 0.0
    for reader in readers:
        if len(chosen) == TESTS_MAX:
            break
        if not chosen or total + reader[1] <= seconds:
            total += reader[1]
            chosen.append(reader)
    return chosen


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:200] if lines else "an error without a message"


def folder_of(repository: Path) -> Path:
    """The folder of recorded readers and of judgements, which git ignores."""
    return repository / ".mutants"
