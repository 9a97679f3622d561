"""Judges: whether the tests, or some seeds of the simulation, find a mutant. The ledger keeps judgements."""

import json
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutants.mutant import Mutant
from tests.mutants.readers import PYTEST, Reader, Readers, Workshop
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


VERDICTS = Path(__file__).with_name("verdicts.toml")


class Ledger:
    """A file that several runs may add to. The last judgement of a mutant by a judge counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, room: str, mutant: Mutant, judgement: Judgement) -> None:
        row = {
            "room": room,
            "id": mutant.id,
            "line": mutant.lines.start,
            "operator": mutant.operator,
            "old": mutant.old,
            "new": mutant.new,
            **asdict(judgement),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The rows by mutant and judge. A last line that a killed run has cut is left out."""
        if not self._path.exists():
            return {}
        rows = [json.loads(line) for line in self._path.read_text().splitlines() if line.endswith("}")]
        return {(row["id"], row["judge"]): row for row in rows}


def verdicts() -> dict[str, dict[str, str]]:
    """For each mutant with a verdict: `verdict` (`equivalent` or `test`), `why`, and the change."""
    found: dict[str, dict[str, str]] = tomllib.loads(VERDICTS.read_text())
    return found


@dataclass(frozen=True)
class Tally:
    """The judged mutants of a room."""

    judged: int
    by_tests: int
    by_simulation: int
    by_either: int
    equivalent: int
    open: tuple[str, ...]
    """Survivors without a verdict."""

    @property
    def share(self) -> str:
        """The share of the mutants that can be found; a dash if none of them was judged."""
        can_be_found = self.judged - self.equivalent
        return f"{self.by_either / can_be_found:.0%}" if can_be_found else "-"


def tally(
    known: Iterable[str],
    rows: Mapping[tuple[str, str], Mapping[str, Any]],
    said: Mapping[str, Mapping[str, str]],
) -> Tally:
    """The tally of the mutants in `known` that have been judged."""
    by = {
        judge: {id_ for id_ in known if rows.get((id_, judge), {}).get("by")}
        for judge in ("tests", "simulation")
    }
    judged = {id_ for id_ in known if (id_, "tests") in rows}
    killed = (by["tests"] | by["simulation"]) & judged
    left = judged - killed
    equivalent = {id_ for id_ in left if said.get(id_, {}).get("verdict") == "equivalent"}
    return Tally(
        len(judged),
        len(by["tests"]),
        len(by["simulation"]),
        len(killed),
        len(equivalent),
        tuple(sorted(left - equivalent)),
    )
