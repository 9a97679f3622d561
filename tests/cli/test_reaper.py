"""Commands end with the worker that started them, killed at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import killed
from tests.cli.test_exec import alive
from tests.cli.test_work import wait_until
from tests.spawned import PROGRAM

STARTS_S = 0.05


@pytest.fixture
def name() -> str:
    """The name of the commands of this test, in their environment."""
    return f"test-{os.urandom(8).hex()}"


def started(work: Callable[[str], None], name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, work.__module__, work.__name__, f'["{name}"]']
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)


def commands(name: str) -> list[int]:
    """Return the ids of the running commands of that name."""
    return [process for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_at(name, process)]


def is_at(name: str, process: int) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False
    return f"FDBQUEUE_TASK={name}".encode() in environment.split(b"\0") and alive(process)


def test_a_worker_may_die_before_it_reports_its_command(name: str) -> None:
    with started(killed.killed_before_it_tells, name) as worker:
        assert worker.wait(30) == -signal.SIGKILL
    wait_until(lambda: not commands(name))


def test_a_command_ends_with_its_worker_though_a_child_lives(name: str) -> None:
    with started(killed.killed_before_its_child, name) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        try:
            assert worker.wait(30) == -signal.SIGKILL
            wait_until(lambda: not commands(name))
            assert alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_worker_may_die_at_any_moment(name: str, rounds: Callable[[int, int], int]) -> None:
    """Also while commands are started one after another."""
    for _ in range(rounds(6, 60)):
        with started(killed.always_starting, name) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            time.sleep(random.uniform(0, STARTS_S))
            worker.kill()
        wait_until(lambda: not commands(name))
