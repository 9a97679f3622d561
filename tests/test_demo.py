"""The demo: it proves what it says, notices when it is not so, and leaves nothing behind."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from rich.console import Console

import fdbqueue
from fdbqueue.database import run
from fdbqueue.demo import show
from fdbqueue.demo.files import count, source_files
from fdbqueue.demo.ledger import Ledger, Work
from tests.support import PATIENCE_S

PROGRAM = [sys.executable, "-m", "fdbqueue.cli", "demo"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def children_of(group: int) -> list[int]:
    """Processes of a process group, zombies aside."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(process_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_every_file_is_counted_once_in_spite_of_a_kill(temporary: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(PROGRAM, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    total = f"{len(source_files()):,}"
    assert "NO " not in done.stdout
    assert f"each of {total} files was counted exactly once" in done.stdout
    consumers = re.search(r"consumers +([\d,]+) +([\d.]+) +([\d,]+) +(\d+) +(\d+) +(\d+)", done.stdout)
    assert consumers is not None
    assert (consumers[1], consumers[6]) == (total, "1")
    assert int(consumers[5]) >= int(consumers[4])
    assert list(temporary.iterdir()) == []
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("number", "after"), [(signal.SIGTERM, "the start"), (signal.SIGINT, "the kill")])
def test_an_interrupt_leaves_nothing_behind(temporary: Path, number: int, after: str) -> None:
    process = subprocess.Popen(
        PROGRAM, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    if after == "the kill":
        process.stdout.readline()
    os.killpg(process.pid, number)
    os.killpg(process.pid, number)  # an impatient user
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (128 + number, "")
    assert list(temporary.iterdir()) == []
    # multiprocessing's own helper ends by itself when it sees that the demo has.
    wait_until(lambda: not children_of(process.pid))


def test_a_worker_that_dies_of_itself_fails_the_demo(temporary: Path) -> None:
    process = subprocess.Popen(
        PROGRAM, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    wait_until(lambda: bool(workers_of(process.pid)))
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert re.fullmatch(r"fdbqueue: \w+-\d ended with status -9.*\n", err)
    assert list(temporary.iterdir()) == []


def workers_of(parent: int) -> list[int]:
    return [
        process
        for process in children_of(parent)
        if "spawn_main" in Path(f"/proc/{process}/cmdline").read_text()
    ]


def fill(ledger: Ledger, tr: Any) -> None:
    """What a good run leaves."""
    for path in source_files():
        ledger.count(tr, path, count(path))
    for worker in ("producer-0", "consumer-0"):
        ledger.note(tr, worker, Work(1, 0, 0, 0.0, 1.0))


def test_the_proof_notices_what_is_wrong() -> None:
    console = Console(file=io.StringIO())
    path = source_files()[0]
    ledger = Ledger(Subspace(("demo",)))
    with fdbqueue.open("memory:") as database:
        run(database, lambda tr: fill(ledger, tr))
        assert show._prove(console, database, ledger, kills=1)
        assert not show._prove(console, database, ledger, kills=0)
        run(database, lambda tr: ledger.put(tr, ["left over"]))
        assert not show._prove(console, database, ledger, kills=1)
        assert ledger.queue.dequeue(database) == "left over"
        run(database, lambda tr: ledger.count(tr, path, count(path)))
        assert not show._prove(console, database, ledger, kills=1)
