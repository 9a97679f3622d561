"""Readers of a line: the tests and the workloads that run it, recorded once for each state of the source."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.workshop import PYTEST, Workshop
from tests.system.workloads import all_workloads

FILE_TIMEOUT_S = 900.0

_APART = frozenset(
    """
    aio cli cluster dashboard diagnosis docker examples fuzz guarded loadtest matrix metrics moving
    mutants packaging pages simulation site soak typed test_benchmarks.py test_call_counts.py test_demo.py
    test_guard.py test_kill.py test_matrix.py test_peers.py test_processes.py test_prose.py test_readme.py
    test_rooms.py test_style.py test_types.py
    """.split()  # noqa: SIM905
)
"""Tests of texts, of numbers of calls, of other programs and rooms: they find any change, or none in time."""
_ALSO = frozenset({"tests/simulation/test_processes.py"})
"""Tests that judge all the same: they try each moment of a commit among processes."""
_HOMES = {
    "embedded": "tests/engine/",
    **dict.fromkeys(("tasks", "disciplines", "sessions", "groups", "limiting"), "tests/tasks/"),
    **{
        name: f"tests/{name}/"
        for name in ("dead", "elements", "fleet", "partitions", "persistent", "schedules")
    },
}
"""Where the tests of a package are; those of the other packages are directly in tests/."""

Reader = tuple[str, float]
"""The id of a test or the name of a workload, and the seconds that it takes."""
ByLine = dict[str, dict[int, list[Reader]]]
"""For each file and line, its readers."""


class Readers:
    """The recorded readers, below `folder`."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self._repository = repository
        self._folder = folder / f"readers-{_digest(sorted(repository.glob('fdbqueue/**/*.py')))}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def record(self, workshop: Workshop, until: float, tell: Callable[[str], None]) -> bool:
        """Record all that has not been recorded of this state of the source and of the tests.

        False if it is `until` (time.monotonic()) before the end.
        """
        for name, path in [*self._test_records(), *self._workload_records()]:
            if path.exists():
                continue
            if time.monotonic() >= until:
                return False
            tell(f"recording the lines that {name} runs")
            workshop.run(_recording(name, path), FILE_TIMEOUT_S)
            if not path.exists():
                tell(f"{name} could not be recorded, and judges nothing")
                path.write_text(json.dumps({"readers": [], "lines": {}}))
        return True

    def tests_of(self, mutant: Mutant) -> list[Reader]:
        """The tests that run the changed lines, in the order of `spread`."""
        return spread(_readers_of(self._tests, mutant), _home_of(mutant.file))

    def workloads_of(self, mutant: Mutant) -> list[Reader]:
        """The workloads that run the changed lines, the fastest first."""
        return _readers_of(self._workloads, mutant)

    @cached_property
    def _tests(self) -> ByLine:
        return _by_line(path for _, path in self._test_records())

    @cached_property
    def _workloads(self) -> ByLine:
        return _by_line(path for _, path in self._workload_records())

    def _test_records(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self._repository.glob("tests/**/test_*.py")):
            name = path.relative_to(self._repository).as_posix()
            if _APART.isdisjoint(name.split("/")) or name in _ALSO:
                yield name, self._folder / f"{name.replace('/', '.')}.{_digest([path])}.json"

    def _workload_records(self) -> Iterator[tuple[str, Path]]:
        for name in all_workloads():
            yield name, self._folder / f"workload.{name}.json"


def spread(tests: Sequence[Reader], home: str) -> list[Reader]:
    """The fastest test of each file, then the second of each, and so on: first of the files below `home`.

    Thousands of tests run some lines. The fastest of all would be those of a few files.
    """
    seen = Counter[str]()
    ranks: list[tuple[bool, int]] = []
    for name, _ in tests:
        file = name.split("::")[0]
        seen[file] += 1
        ranks.append((not file.startswith(home), seen[file]))
    order = sorted(range(len(tests)), key=ranks.__getitem__)
    return [tests[n] for n in order]


def _home_of(file: str) -> str:
    return _HOMES.get(file.split("/")[1], "tests/test_")


def _recording(name: str, result: Path) -> list[str]:
    """The program that records a file of tests, or a workload."""
    if not name.endswith(".py"):
        return ["-m", "tests.mutants.workload_recorder", str(result), name]
    return [*PYTEST, "--timeout=60", "-p", "tests.mutants.recorder", "--record", str(result), name]


def _by_line(paths: Iterable[Path]) -> ByLine:
    found: ByLine = {}
    for path in paths:
        known = json.loads(path.read_text())
        readers = [tuple(reader) for reader in known["readers"]]
        for file, lines in known["lines"].items():
            for line, numbers in lines.items():
                found.setdefault(file, {}).setdefault(int(line), []).extend(readers[n] for n in numbers)
    return found


def _readers_of(known: ByLine, mutant: Mutant) -> list[Reader]:
    lines = known.get(mutant.file, {})
    found = {reader for line in mutant.lines for reader in lines.get(line, ())}
    return sorted(found, key=lambda reader: (reader[1], reader[0]))


def _digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]
