"""The same seed gives the same trace, in any process and after any other run."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from fdbqueue.testing import Case, Simulation
from tests.commit import first_seed
from tests.system.workloads import all_workloads

SEED, DAYS = 1, 4

HASHES = """
from fdbqueue.testing import Case
from tests.system.workloads import all_workloads
for name in {names}:
    print(name, Case.of(all_workloads()[name], {seed}).run({detailed}).trace.hash())
"""


def hashes_of_a_process(names: list[str], hash_seed: str, *, detailed: bool = False) -> str:
    program = HASHES.format(names=names, seed=SEED, detailed=detailed)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.in_turn(4)
@pytest.mark.timeout(1200)  # the processes have a minute of work on a core of their own
def test_a_trace_depends_on_neither_hashes_nor_its_detail(
    rounds: Callable[[list[str], list[str]], list[str]],
) -> None:
    """The commit chooses a quarter of the workloads; `make nightly` compares all, for two minutes."""
    every = sorted(all_workloads())
    names = rounds(every[first_seed() % DAYS :: DAYS], every)
    plain, detailed = hashes_of_a_process(names, "1"), hashes_of_a_process(names, "2", detailed=True)
    assert plain == detailed
    assert len(plain.splitlines()) == len(names) > 0


def test_a_run_does_not_depend_on_the_runs_before_it() -> None:
    workload = all_workloads()["recipe"]
    alone = Case.of(workload, 7).run().trace.hash()
    Case.of(workload, 8).run()
    assert Case.of(workload, 7).run().trace.hash() == alone


def test_another_seed_is_another_run() -> None:
    workload = all_workloads()["recipe"]
    assert len({Case.of(workload, seed).run().trace.hash() for seed in range(5)}) == 5


def test_limits_set_for_a_run_end_with_it() -> None:
    from fdbqueue.core import limits

    before = limits.SERVE_MAX
    simulation = Simulation(1)
    simulation.limit(SERVE_MAX=1)
    seen: list[int] = []
    simulation.client(lambda _: seen.append(limits.SERVE_MAX), "only")
    simulation.run()
    assert (seen, limits.SERVE_MAX) == ([1], before)


@pytest.mark.parametrize("name", sorted(all_workloads()))
def test_every_workload_is_in_a_described_file(name: str) -> None:
    module = sys.modules[all_workloads()[name].build.__module__]
    assert module.__doc__
    with open(str(module.__file__)) as source:
        assert len(source.readlines()) <= 700
