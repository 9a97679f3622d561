"""The script that takes and acks: each day is cut once, also if a script is killed in between."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.conftest import CLUSTER_FILE
from tests.pages.blocks import ROOT
from tests.support import wait_until

LOG = "20261130 a\n20261201 b\n20261130 c\n"


class Place:
    """A directory with the program on the PATH, and a queue of days."""

    def __init__(self, folder: Path, url: str, root: str) -> None:
        self.folder = folder
        program = folder / "bin" / "fdbqueue"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fdbqueue.operate.cli --root {root} "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "FDBQUEUE_URL": url, "PYTHONPATH": str(ROOT)}
        (folder / "app.log").write_text(LOG)

    def start(self, *command: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*command, **variables)
        out, err = process.communicate()
        return process.returncode, out, err

    def days(self, log: str = "app.log") -> list[str]:
        return [str(ROOT / "examples" / "days.sh"), log, "out"]

    def cut(self) -> dict[str, str]:
        found = (self.folder / "out").glob("*.gz")
        return {path.name: gzip.decompress(path.read_bytes()).decode() for path in found}

    def counts(self) -> dict[str, int]:
        tasks = json.loads(self.run("fdbqueue", "stats", "days", "--json")[1])["tasks"]
        return {state: tasks[state] for state in ("ready", "taken", "buried", "done")}


@pytest.fixture(params=["embedded", "fdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "fdb" and CLUSTER_FILE is None:
        pytest.skip("FDB_CLUSTER_FILE names no cluster")
    url = f"embedded:{tmp_path}/data" if request.param == "embedded" else f"fdb:{CLUSTER_FILE}"
    root = ("fdbqueue-test", os.urandom(8).hex())
    place = Place(tmp_path, url, "/".join(root))
    place.run("fdbqueue", "create", "days")
    yield place
    if request.param == "fdb":
        with fdbqueue.open(url) as db:
            db.clear_range_startswith(Subspace(root).key())


def test_each_day_is_cut_and_one_without_lines_is_buried(place: Place) -> None:
    place.run("fdbqueue", "put", "days", "20261130", "20261201", "20261202")
    assert place.run(*place.days())[0] == 0
    assert place.cut() == {"20261130.gz": "20261130 a\n20261130 c\n", "20261201.gz": "20261201 b\n"}
    assert place.counts() == {"ready": 0, "taken": 0, "buried": 1, "done": 2}
    dead = json.loads(place.run("fdbqueue", "dead", "classes", "days", "--json")[1])
    assert (dead["error"], dead["tasks"]) == ("NoLines", 1)


def test_a_killed_script_leaves_its_day_to_another(place: Place) -> None:
    place.run("fdbqueue", "put", "days", "20261130")
    os.mkfifo(place.folder / "slow.log")
    killed = place.start(*place.days("slow.log"), TTR="3")
    wait_until(lambda: place.counts()["taken"] == 1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert place.counts() == {"ready": 0, "taken": 1, "buried": 0, "done": 0}
    wait_until(lambda: place.run(*place.days())[0] == 0 and place.counts()["done"] == 1)
    assert place.cut() == {"20261130.gz": "20261130 a\n20261130 c\n"}


def test_an_error_is_no_end(place: Place) -> None:
    place.run("fdbqueue", "drop", "days", "--yes")
    status, _, err = place.run(*place.days())
    assert (status, "there is no queue named 'days'" in err) == (1, True)
