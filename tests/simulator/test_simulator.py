"""The engine, the host and the stages, on a fake of the C interface. No server is needed."""

import json
import os
import subprocess
import sys

import pytest

from tests.simulator.build import built, missing, search_path

SEEDS = range(1, 4)
LIMIT_S = 120


def report(workload, seed, *host):
    words = [sys.executable, "-m", "tests.simulator.fake", workload, str(seed), *map(str, host)]
    environment = {**os.environ, "FDBQUEUE_SIMULATOR_PATH": search_path(), "PYTHONHASHSEED": "0"}
    run = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stderr
    return json.loads(run.stdout.removeprefix("fdbqueue "))


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The library of the host."""
    if lack := missing():
        pytest.skip(f"the host needs {lack}")
    return built(tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engine_keeps_the_contract_of_the_seam(seed):
    assert report("contract", seed)["done"] == 8


@pytest.mark.parametrize("workload", ["recipe", "tasks", "awaited_tasks"])
def test_a_workload_meets_faults_and_keeps_its_promises(workload):
    told = report(workload, 1)
    assert told["violations"] == []
    assert {"error 1020", "error 1021"} <= set(told["faults"])


def test_a_seed_gives_the_same_run_through_the_host(host):
    """The trace has each operation with its time and its result."""
    direct, hosted, again = report("recipe", 2), report("recipe", 2, host), report("recipe", 2, host)
    assert direct == hosted == again
    assert report("recipe", 3, host)["trace"] != hosted["trace"]
