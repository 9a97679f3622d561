"""A plugin of pytest that records which lines of fdbqueue each test runs, and how long each test takes.

`python -m pytest -p tests.mutants.recorder --record FILE`. Child processes are not recorded.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import coverage
import pytest

import fdbqueue

PACKAGE = Path(fdbqueue.__file__).parent


def measuring(data_file: Path) -> coverage.Coverage:
    """A measurement of the lines of fdbqueue, also in threads and greenlets."""
    return coverage.Coverage(
        data_file=str(data_file),
        source=[str(PACKAGE)],
        concurrency=["thread", "greenlet"],
        config_file=False,
        messages=False,
    )


def lines_by_context(measured: coverage.Coverage) -> dict[str, dict[int, list[str]]]:
    """For each file below the repository, the contexts in which each of its lines ran."""
    data = measured.get_data()
    return {
        Path(name).relative_to(PACKAGE.parent).as_posix(): {
            line: sorted(filter(None, contexts)) for line, contexts in data.contexts_by_lineno(name).items()
        }
        for name in data.measured_files()
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE", help="write the lines that each test runs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(Path(config.getoption("--record"))))


class Recorder:
    def __init__(self, result: Path) -> None:
        self._result = result
        self._measured = measuring(result.with_suffix(".coverage"))
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if not self._seconds:
            self._measured.start()
        began = monotonic()
        self._measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._measured.switch_context("")
            self._seconds[item.nodeid] = round(monotonic() - began, 3)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:  # a skipped test judges nothing
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._measured.stop()
        write(self._result, lines_by_context(self._measured), self._sound())

    def _sound(self) -> dict[str, float]:
        """Seconds of each test that has passed."""
        return {test: seconds for test, seconds in self._seconds.items() if test not in self._failed}


def write(path: Path, lines: dict[str, dict[int, list[str]]], seconds: dict[str, float]) -> None:
    """Write the readers of each line, as numbers of the readers, which are listed with their seconds."""
    number = {name: n for n, name in enumerate(seconds)}
    known: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for file, by_line in lines.items():
        for line, names in by_line.items():
            known[file][line] = [number[name] for name in names if name in number]
    path.write_text(json.dumps({"readers": list(seconds.items()), "lines": known}))
