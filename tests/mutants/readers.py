"""Readers of a line: the tests and workloads that run it, recorded once for each state of the source.

One module at a time is changed in a temporary copy of the repository.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.system.workloads import all_workloads

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout")
"""pytest with the one plugin that tests need: others cost seconds for each start."""

_LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "site", "load-report", "out", "fdbqueue-data"
)


@dataclass(frozen=True)
class Ended:
    """The end of a program: its status, None after the time limit, and its output."""

    status: int | None
    output: str


class Workshop:
    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self.root = folder / "copy"
        shutil.copytree(repository, self.root, ignore=_LEFT_OUT)
        where = self.run(["-c", "import fdbqueue; print(fdbqueue.__file__)"], 60).output.strip()
        if Path(where).parent != self.root / "fdbqueue":
            raise RuntimeError(f"programs in the copy would import {where}")

    def run(self, arguments: Sequence[str], seconds: float) -> Ended:
        """Run Python in the copy, for at most `seconds`. Its children end with it."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONHASHSEED": "0"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment.pop("FDB_CLUSTER_FILE", None)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ended(process.returncode, output)
        except subprocess.TimeoutExpired:
            return Ended(None, _ended(process))
        finally:
            _end(process)

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the change for the duration of the context."""
        path = self.root / mutant.file
        sound = (self.repository / mutant.file).read_text()
        _write(path, mutant.planted_in(sound))
        try:
            yield
        finally:
            _write(path, sound)

    def refresh(self, files: Sequence[str]) -> None:
        """Copy these files again."""
        for file in files:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.repository / file, self.root / file)


@contextmanager
def workshop(repository: Path) -> Iterator[Workshop]:
    with tempfile.TemporaryDirectory(prefix="fdbqueue-mutants-", ignore_cleanup_errors=True) as folder:
        yield Workshop(repository, Path(folder))


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    # Bytecode is known by the second and the size of its source: two mutants may share both.
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink()


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children, which are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[str]) -> str:
    _end(process)
    with suppress(subprocess.TimeoutExpired):  # a child of another group may hold the pipe
        return process.communicate(timeout=5)[0]
    return ""


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
    "embedded/": "engine/",
    "core/sessions/": "tasks/",
    "core/partitions": "partitions/",
    "core/line/wide": "partitions/",
    "tasks/dead_letters": "dead/",
    "tasks/redrive": "dead/",
    "tasks/schedules": "schedules/",
    "tasks/firing": "schedules/",
    "tasks/": "tasks/",
    "queues/elements/": "elements/",
    "queues/persistent": "persistent/",
    "queues/unacked": "persistent/",
    "fleet/": "fleet/",
}
"""Where the tests of files are, by the beginnings of their paths. All others are directly in tests/."""

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
    path = file.removeprefix("fdbqueue/")
    return "tests/" + next((home for start, home in _HOMES.items() if path.startswith(start)), "test_")


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
