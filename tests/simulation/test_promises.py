"""The table of promises in docs/tests.md: each row names code that exists."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

import pytest

from fdbqueue.testing import checkers, trace
from tests.simulation.planted import PLANTS
from tests.system import aftermath, audit
from tests.system.workloads import all_workloads, common, fairness

PAGE = Path(__file__).parents[2] / "docs" / "tests.md"
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
    """A row of the table: the promise, and the workloads with a checker of each."""

    promise: str
    checkers: list[tuple[str, str]]


def promises() -> list[Promise]:
    _, _, after = PAGE.read_text().partition("## Promises and their checkers\n")
    section, _, _ = after.partition("\n## ")
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    return [
        Promise(promise.strip(), re.findall(r"`(\w+)\.(\w+)`", checkers))
        for promise, checkers in rows
        if not promise.startswith(" **")
    ]


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
