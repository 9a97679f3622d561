"""The hooks and fixtures that pytest finds by the entry point."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue.core.database import Database
from fdbqueue.testing.pytest_plugin.running import Runner, ShiftedRuntime

MARKER = "fdbqueue_simulation"


@pytest.fixture
def fdbqueue_db() -> Iterator[Database]:
    """An empty embedded database in memory, which goes with its test. Its clock can be set forward."""
    # No session ends by its ttr: the clock jumps, and the heartbeats of this process do not.
    with fdbqueue.open("memory:", runtime=ShiftedRuntime(), session_ttr_s=float("inf")) as db:
        yield db


@pytest.fixture
def fdbqueue_worker(fdbqueue_db: Database) -> Runner:
    """Runs every task of a queue in the test: `fdbqueue_worker("mails", send)`. See Runner."""
    return Runner(fdbqueue_db)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fdbqueue")
    group.addoption(
        "--fdbqueue-seeds", type=int, metavar="N", help="seeds of each simulation, in place of its own number"
    )
    group.addoption("--fdbqueue-seed", type=int, metavar="N", help="run each simulation with this seed only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(seeds=100, first=0, clients=3, steps=5, never=()): "
        "the function is a workload of fdbqueue.testing, and runs once for each seed",
    )


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Any:
    marks = [mark for mark in getattr(obj, "pytestmark", ()) if mark.name == MARKER]
    if not marks or not collector.istestfunction(obj, name):
        return None
    # Only now: the simulation needs an extra, and pytest loads this plugin in each run.
    simulated = importlib.import_module("fdbqueue.testing.pytest_plugin.simulated")
    return simulated.Simulated.from_parent(collector, name=name, build=obj, mark=marks[0])
