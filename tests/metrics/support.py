"""promtool, of Debian's package `prometheus`, as a judge."""

import shutil
import subprocess
from pathlib import Path

import pytest

MONITORING = Path(__file__).parents[2] / "monitoring"


def checked_by_promtool(arguments: list[str], given: bytes = b"") -> str:
    """The complaints of promtool; the test is skipped where it is not installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run([promtool, *arguments], input=given, capture_output=True, timeout=60, check=False)
    return "" if done.returncode == 0 and not done.stderr else (done.stdout + done.stderr).decode()
