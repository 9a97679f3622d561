"""The queue that grows under load: no put is lost and none waits on, on each engine, also under asyncio."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from examples import growing
from fdbqueue import TaskQueue
from fdbqueue.core.registry import Registry
from tests.pages.blocks import ROOT

SAID = [f"{growing.PRODUCERS} tasks of {growing.PRODUCERS} producers"]
CHANGES = ["ttr: None to 90.0", f"capacity: {growing.SMALL} to {growing.LARGE}"]


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_all_producers_go_on(url: str, face: str) -> None:
    found = asyncio.run(growing.grow_awaited(url)) if face == "asyncio" else growing.grow(url)
    assert found[:1] == SAID
    assert sorted(found[1:]) == sorted(CHANGES)
    if url == "memory:":
        return
    with fdbqueue.open(url) as db:
        shop = TaskQueue.open(db, "shop")
        assert shop.options["capacity"] == growing.SMALL
        assert shop.statistics(db)["tasks"]["total"] == 0
        Registry().drop(db, "shop")


def test_the_program_runs_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.growing"]
    environment = {"PYTHONPATH": str(ROOT), "FDBQUEUE_URL": f"embedded:{tmp_path}/data"}
    for face in ([], ["--asyncio"]):
        done = subprocess.run(
            [*command, *face], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[0] == SAID[0]
