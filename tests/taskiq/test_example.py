"""The example of docs/taskiq.md, with the worker and the scheduler of Taskiq's own command."""

import os
import subprocess
import sys
from pathlib import Path

from tests.taskiq.processes import taskiq

ROOT = Path(__file__).parents[2]


def test_the_example_welcomes_and_reminds_a_new_user(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/data"
    worker = ("worker", "examples.taskiq_app:broker", "--workers", "1")
    scheduler = ("scheduler", "examples.taskiq_app:scheduler", "--update-interval", "1")
    with (
        taskiq(*worker, folder=ROOT, FDBQUEUE_URL=url),
        taskiq(*scheduler, folder=ROOT, FDBQUEUE_URL=url),
    ):
        program = [sys.executable, "-m", "examples.taskiq_app", "ada"]
        environment = os.environ | {"FDBQUEUE_URL": url}
        ran = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.stdout == "welcome, ada\nstill there, ada?\n", ran.stderr
