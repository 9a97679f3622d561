"""The table of promises in docs/tests.md: each row names code that exists."""

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

PAGE = Path(__file__).parents[2] / "docs" / "tests.md"
JUDGES = [
    import_module(f"{package.__name__}.{module.name}")
    for package in (audit, aftermath)
    for module in iter_modules(package.__path__)
]
"""The rules of the auditor and of the aftermath, which judge every workload."""
_BUGS = {plant.what: plant for plant in PLANTS}


class Promise(NamedTuple):
    """A row of the table."""

    promise: str
    workload: str
    checker: str
    bug: str
    seeds: str


def promises() -> list[Promise]:
    _, _, after = PAGE.read_text().partition("## Promises and their checkers\n")
    section, _, _ = after.partition("\n## ")
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [Promise(*(cell.strip() for cell in row.strip("|").split("|"))) for row in rows]


@pytest.mark.parametrize("row", promises(), ids=lambda row: row.promise)
def test_a_promise_has_a_checker_and_a_bug(row: Promise) -> None:
    """The bug is planted for that workload, and needs no more seeds than its search allows."""
    assert all(row)
    bug = _BUGS[row.bug]
    assert bug.workload == row.workload
    assert int(row.seeds) <= max(bug.seeds_max, bug.near + 1)
    assert f"def {row.checker.strip('`')}(" in _source_of(row.workload)


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
