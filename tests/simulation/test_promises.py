"""The promises of promises.txt: each names checkers that exist."""

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

import pytest

from fdbqueue.testing import checkers, trace
from tests.simulation.planted import PLANTS
from tests.system import aftermath, audit
from tests.system.workloads import all_workloads, common, fairness

PROMISES = Path(__file__).parent / "promises.txt"
"""A promise in each line; below it, indented, its checkers. The title of a part ends in a colon."""
JUDGES = [
    import_module(f"{package.__name__}.{module.name}")
    for package in (audit, aftermath)
    for module in iter_modules(package.__path__)
]
"""The rules of the auditor and of the aftermath, which judge every workload."""
_PROVED = {(plant.workload, checker) for plant in PLANTS for checker in plant.by}
"""The checkers that find a planted bug, each with its workload."""
_WORDS_MAX = 15


class Promise(NamedTuple):
    promise: str
    checkers: list[tuple[str, str]]
    """Each with the workload that has it."""


def promises() -> list[Promise]:
    found: list[Promise] = []
    for line in PROMISES.read_text().splitlines():
        if line.startswith("  "):
            workload, _, checker = line.strip().partition(".")
            found[-1].checkers.append((workload, checker))
        elif line and not line.endswith(":"):
            found.append(Promise(line, []))
    return found


@pytest.mark.parametrize("row", promises(), ids=lambda row: row.promise)
def test_a_promise_has_checkers_that_exist(row: Promise) -> None:
    assert row.checkers
    for workload, checker in row.checkers:
        assert f"def {checker}(" in _source_of(workload)


def test_each_checker_that_is_proved_has_its_promise() -> None:
    assert {pair for row in promises() for pair in row.checkers} == _PROVED


def test_each_promise_is_short_and_told_once() -> None:
    told = [row.promise for row in promises()]
    assert len(told) == len({*told}) > 90
    assert [text for text in told if len(text.split()) > _WORDS_MAX] == []


def _source_of(workload: str) -> str:
    """The modules in which the checkers of a workload may be."""
    build = all_workloads()[workload].build
    here = inspect.getsource(inspect.getmodule(build) or common)
    beside = [
        line.split()[1]
        for line in here.splitlines()
        if line.startswith(("from fdbqueue.testing", "from tests.system"))
    ]
    modules = [checkers, trace, common, fairness, *JUDGES, *map(import_module, beside)]
    return here + "".join(map(inspect.getsource, modules))
