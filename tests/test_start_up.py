"""Start-up: the modules of fdbqueue that a program loads, as numbers that may only fall."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdbqueue.tasks.feature import OF_TASKS, STAGES, SWEPT

OWN = 'print(json.dumps(sum(name.split(".")[0] == "fdbqueue" for name in sys.modules)))'
COMMAND = """
import contextlib, io, json, sys
sys.argv = ["fdbqueue", *{words!r}]
from fdbqueue.operate.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""
CREATED = """
import json, sys, fdbqueue
with fdbqueue.open("embedded:data") as db:
    fdbqueue.TaskQueue.create(db, "q")
"""
QUEUE = """
import json, sys, fdbqueue
with fdbqueue.open("embedded:data") as db:
    queue = fdbqueue.TaskQueue.create(db, "jobs")
    queue.put(db, "x")
    queue.ack(db, queue.take(db, timeout=0))
"""


def modules_after(program: str, directory: Path) -> int:
    """Without the guard of a run on a cluster (tests/guard.py), which loads modules of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", f"{program}\n{OWN}"]
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return int(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("program", "most"),
    [
        pytest.param("import json, sys, fdbqueue", 3, id="import fdbqueue"),
        pytest.param("import json, sys, fdbqueue\nfdbqueue.open", 36, id="open"),
        pytest.param(QUEUE, 75, id="a task is put, taken and acked"),
        pytest.param(COMMAND.format(words=["--help"]), 20, id="fdbqueue --help"),
    ],
)
def test_a_program_loads_few_modules(program: str, most: int, tmp_path: Path) -> None:
    assert modules_after(program, tmp_path) <= most


def test_a_put_of_the_command_line_loads_one_class_of_queues(tmp_path: Path) -> None:
    modules_after(CREATED, tmp_path)
    words = ["--url", "embedded:data", "put", "q", "x"]
    program = f"{COMMAND.format(words=words)}\nassert 'rich' not in sys.modules"
    assert modules_after(program, tmp_path) <= 91


def test_no_framework_is_loaded_before_it_is_used(tmp_path: Path) -> None:
    optional = ["click", "rich", "greenlet", "celery", "django", "prometheus_client", "starlette", "cronsim"]
    assert modules_after(f"{QUEUE}\nassert not sys.modules.keys() & {optional}", tmp_path) > 0


def test_a_plain_put_loads_no_stage_of_a_feature(tmp_path: Path) -> None:
    """But for those of features that are swept."""
    swept = {OF_TASKS[field].partition(":")[0] for field in SWEPT}
    stages = {name.partition(":")[0] for name in STAGES.values()} - swept
    assert modules_after(f"{QUEUE}\nassert not sys.modules.keys() & {stages}", tmp_path) > 0


def test_every_command_loads_without_other_extras(tmp_path: Path) -> None:
    extras = [
        "greenlet",
        "celery",
        "dramatiq",
        "taskiq",
        "django",
        "prometheus_client",
        "starlette",
        "cronsim",
    ]
    hidden = f"import json, sys\nsys.modules.update(dict.fromkeys({[*extras, 'opentelemetry', 'locust']}))"
    program = (
        f"{hidden}\nfrom fdbqueue import diagnose, verify\nfrom fdbqueue.operate.cli.commands import cli"
    )
    assert modules_after(f"{program}\ncli.load()", tmp_path) > 0
