"""The demo: its proof is right, notices damage, and leaves nothing behind."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace
from rich.console import Console

import fdbqueue
from fdbqueue.core.database import run
from fdbqueue.core.task import Failure
from fdbqueue.operate import demo
from fdbqueue.operate.cli import exits
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.demo import FaultInjector, Ledger, Part, count, parts_of, source_files
from tests.support import PATIENCE_S, wait_until

PROGRAM = [sys.executable, "-m", "fdbqueue.operate.cli", "demo"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def descendants(temporary: Path) -> list[int]:
    """Worker processes of this test's fleet that live, zombies aside; other tests have fleets, too."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            is_worker = state != "Z" and b"fleet.child" in (process / "cmdline").read_bytes()
            is_ours = is_worker and f"TMPDIR={temporary}\0".encode() in (process / "environ").read_bytes()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if is_ours:
            found.append(int(process.name))
    return found


@pytest.mark.in_turn(4)
def test_every_part_is_counted_once_in_spite_of_kills_and_stalls(
    temporary: Path, rounds: Callable[[int, int], int]
) -> None:
    tasks = rounds(3_000, 20_000)
    done = subprocess.run([*PROGRAM, "--tasks", str(tasks)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "NO " not in done.stdout
    first, *_ = done.stdout.splitlines()
    assert f"4 processes count the lines of {tasks:,} parts" in first
    assert f"each of {tasks:,} parts of {len(source_files()):,} files was counted exactly once" in done.stdout
    numbers = dict(re.findall(r"^(\w.*?)  +([\d,.]+)$", done.stdout, re.MULTILINE))
    assert numbers["acked"] == f"{tasks:,}"
    assert int(numbers["workers killed (SIGKILL)"]) > 0
    assert int(numbers["workers stalled (SIGSTOP)"]) > 0
    *_, error, last = done.stdout.splitlines()
    assert error.endswith("No such file or directory: '/nowhere/poison.py'")
    assert "Traceback" not in done.stdout, "an error on the screen looks like a failure"
    assert last == "The demo has succeeded."
    assert list(temporary.iterdir()) == []


def test_without_a_terminal_the_demo_tells_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, out = [0.0], io.StringIO()
    monkeypatch.setattr(demo, "monotonic", lambda: seconds[0])
    with demo._progress(Console(file=out)) as tell:
        for second in range(17):
            seconds[0] = second
            tell(f"second {second}")
    assert out.getvalue().splitlines() == ["second 5", "second 10", "second 15"]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_leaves_nothing_behind(temporary: Path, number: int) -> None:
    process = subprocess.Popen(
        PROGRAM, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    if number == signal.SIGINT:
        wait_until(lambda: bool(descendants(temporary)), 6 * PATIENCE_S)  # two programs have to start
    os.killpg(process.pid, number)
    os.killpg(process.pid, number)  # an impatient user
    _, err = process.communicate(timeout=3 * PATIENCE_S)
    assert (process.returncode, err) == (128 + number, "")
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not descendants(temporary))


def test_a_root_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert exits.run(cli, ["--root", "team", "demo"]) == 2
    assert "it takes no --root" in capfd.readouterr().err


def test_the_private_url_is_a_temporary_directory(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    seen: list[str] = []
    monkeypatch.setattr(demo, "_work", lambda *_: None)
    monkeypatch.setattr(demo, "_prove", lambda *_: True)
    monkeypatch.setattr(demo, "_put", lambda *given: seen.append(given[-1]))
    assert demo.main("memory:", 1) == 0
    assert seen[0].startswith(f"embedded:{temporary}/")
    assert list(temporary.iterdir()) == []


def test_parts_make_up_their_files() -> None:
    sizes = source_files()
    parts = parts_of(sizes, 5_000)
    assert len(parts) == 5_000
    assert {part.path for part in parts} == sizes.keys()
    path = max(sizes, key=lambda path: sizes[path])
    mine = [part for part in parts if part.path == path]
    assert [part.number for part in mine] == list(range(mine[0].of))
    assert len(mine) > 1
    whole = count(Part(path, 0, 1))
    assert sum(count(part).lines for part in mine) == whole.lines == Path(path).read_bytes().count(b"\n")


def test_few_tasks_are_a_part_for_each_file() -> None:
    assert parts_of({"a": 10, "b": 0, "c": 1}, 1) == [Part("a", 0, 1), Part("b", 0, 1), Part("c", 0, 1)]


def test_the_proof_notices_each_kind_of_damage() -> None:
    console = Console(file=io.StringIO())
    ledger = Ledger(Subspace(("demo",)))
    parts = parts_of(dict(list(source_files().items())[:20]), 30)
    with fdbqueue.open("memory:") as database:
        queue = fdbqueue.TaskQueue.create(database, "parts", root=ledger.root)
        done = demo.Run(parts, FaultInjector(), seconds=1.0)
        done.faults.kills = done.faults.stalls = 1

        def holds() -> bool:
            return demo._prove(console, database, ledger, queue, done)

        for part in parts:
            run(database, lambda tr, part=part: ledger.count(tr, part, count(part)))
        assert not holds(), "there is no poisoned task"
        queue.put(database, list(demo.POISON))
        for _ in range(demo.ATTEMPTS - 1):
            queue.release(database, queue.take(database, 0), failure=Failure("E", detail="Traceback"))
        assert not holds(), "it is not buried"
        queue.bury(database, queue.take(database, 0), failure=Failure("E", detail="Traceback"))
        assert holds()
        done.faults.kills = 0
        assert not holds(), "nobody was killed"
        done.faults.kills = 1
        queue.put(database, "left over")
        assert not holds(), "something is left"
        queue.ack(database, queue.take(database, 0))
        assert holds()
        run(database, lambda tr: ledger.count(tr, parts[0], count(parts[0])))
        assert not holds(), "a part was counted twice"
