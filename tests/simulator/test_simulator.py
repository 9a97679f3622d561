"""The engine, the host and the stages, on a fake of the C interface. No server is needed."""

import json
import os
import shlex
import subprocess
import sys
import tempfile

import pytest

from tests.simulator.__main__ import main
from tests.simulator.build import built, missing, search_path

SEEDS = range(1, 4)
LIMIT_S = 120


def report(workload, seed, *host, status=0):
    words = [sys.executable, "-m", "tests.simulator.fake", workload, str(seed), *map(str, host)]
    environment = {**os.environ, "FDBQUEUE_SIMULATOR_PATH": search_path(), "PYTHONHASHSEED": "0"}
    environment["PYTHONPATH"] = search_path()
    with tempfile.TemporaryDirectory() as folder:  # a run that fails writes its calls there
        run = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment,
            cwd=folder,
            check=False,
        )
    assert run.returncode == status, run.stdout + run.stderr
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
    assert report("contract", seed)["answered"] == 8


@pytest.mark.parametrize("workload", ["recipe", "tasks", "awaited_tasks", "proxies"])
def test_a_workload_meets_faults_and_keeps_its_promises(workload):
    told = report(workload, 1)
    assert told["violations"] == []
    assert {"error 1020", "error 1021"} <= set(told["faults"])


def test_a_commit_is_done_or_not_and_no_client_hears_of_it():
    """The dice of a client decide, beside the fake's own unknown results."""
    told = report("repeated", 3)
    assert told["violations"] == []
    assert {"unknown_done", "unknown_not_done"} <= set(told["faults"])


def test_a_client_that_fails_is_told_and_its_threads_end_with_it():
    """The databases of a stage end with it, and the fake refuses their use."""
    (told,) = report("failing", 1, status=1)["violations"]
    assert told.startswith("client raised NotImplementedError()")


def test_a_seed_gives_the_same_run_through_the_host(host):
    """The trace has each operation with its time and its result."""
    direct, hosted, again = report("recipe", 2), report("recipe", 2, host), report("recipe", 2, host)
    assert direct == hosted == again
    assert report("recipe", 3, host)["trace"] != hosted["trace"]


SERVER = f"""#!{sys.executable}
import os, re, sys
sys.path[:] = os.environ["FDBQUEUE_SIMULATOR_PATH"].split(":")
from tests.simulator.fake import Simulator
text, seed = open("test.toml").read(), int(sys.argv[sys.argv.index("-s") + 1])
path, workload = (re.search(name + " = '(.*)'", text)[1] for name in ("libraryPath", "workloadName"))
is_sound = Simulator(workload, seed, {{}}).play(path + "/libfdbqueue_host.so")
print(f"Unseed: {{seed}}\\n\\n{{int(is_sound)}} tests passed; {{int(not is_sound)}} tests failed.")
"""
DOUBLE = "a take that does not conflict at the head of the queue"


@pytest.mark.usefixtures("host")
def test_the_program_runs_seeds_and_repeats_a_failed_one(tmp_path, capsys):
    """The server is the fake. The command of a failure finds the planted bug again."""
    server, client = tmp_path / "fdbserver", tmp_path / "libfdb_c.so"
    server.write_text(SERVER)
    server.chmod(0o755)
    client.touch()
    words = [
        "--fdbserver",
        str(server),
        "--folder",
        str(tmp_path),
        "--seeds",
        "2",
        "--workloads",
        "recipe",
        "--files",
        "mild,cruel",
    ]
    assert main([*words, "--twice"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in sorted(told)[1:]] == [
        "cruel recipe seed 1",
        "mild recipe seed 2",
    ]
    assert main([*words, "--plant", DOUBLE]) == 1
    (again, *_) = [line for line in capsys.readouterr().out.splitlines() if "python -m" in line]
    assert main([*shlex.split(again)[3:], "--folder", str(tmp_path)]) == 1
    assert "delivered 2 times" in capsys.readouterr().out
