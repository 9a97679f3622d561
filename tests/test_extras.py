"""Parts of fdbqueue that need an extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Lacking())
from fdbqueue.{part} import *
"""


def last_line_without(module: str, part: str) -> str:
    """The error of a program that imports a part of fdbqueue, if `module` is not installed."""
    program = PROGRAM.format(module=module, part=part)
    # Isolated from the modules that a run with a cluster imports first (tests/guard.py).
    alone = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=alone)
    return ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("part", "module", "extra"),
    [
        ("aio", "greenlet", "aio"),
        ("testing", "greenlet", "testing"),
        ("integrations.taskiq", "taskiq", "taskiq"),
        ("integrations.taskiq", "greenlet", "taskiq"),
        ("integrations.prometheus", "prometheus_client", "metrics"),
        ("integrations.opentelemetry", "opentelemetry", "otel"),
        ("operate.dashboard", "starlette", "dashboard"),
        ("operate.dashboard", "anyio", "dashboard"),
        ("operate.dashboard", "jinja2", "dashboard"),
    ],
)
def test_an_import_without_its_extra_names_the_extra(part: str, module: str, extra: str) -> None:
    error = f"ModuleNotFoundError: {module} is not installed: pip install 'fdbqueue[{extra}]'"

    assert last_line_without(module, part) == error


def test_the_error_of_another_missing_module_names_no_extra() -> None:
    assert last_line_without("msgspec", "aio") == "ModuleNotFoundError: msgspec"
