"""Processes of Taskiq's own command."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import CLUSTER_FILE


def place(engine: str, directory: Path) -> str:
    """A URL that processes share; skips without a cluster."""
    if engine == "embedded":
        return f"embedded:{directory}/data"
    if CLUSTER_FILE is None:
        pytest.skip("FDB_CLUSTER_FILE names no cluster")
    return f"fdb:{CLUSTER_FILE}"


@contextmanager
def taskiq(*command: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`taskiq worker` or `taskiq scheduler`. It is killed, with its children, at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taskiq", *command],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
