"""The example of docs/dramatiq.md, with the workers of Dramatiq's own command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_welcomes_a_new_user(tmp_path: Path) -> None:
    environment = os.environ | {"FDBQUEUE_URL": f"embedded:{tmp_path}/data"}
    command = [sys.executable, "-m", "dramatiq", "examples.dramatiq_app", "--processes", "2"]
    workers = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        program = [sys.executable, "-m", "examples.dramatiq_app", "ada"]
        ran = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True)
    finally:
        os.killpg(workers.pid, signal.SIGKILL)
        workers.wait()

    assert ran.stdout == "welcome, ada\n", ran.stderr
