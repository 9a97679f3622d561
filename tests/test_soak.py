"""The soak of kills and stops, in its short version; and its count finds each kind of damage."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fdbqueue.testing import soak
from fdbqueue.testing.soak_count import Notes, Stored, judged
from tests.support import PATIENCE_S, wait_until


@pytest.mark.timeout(300)
def test_killed_and_stopped_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    done, count = soak.soaked(tmp_path, seconds=6, pause_s=0.2)
    assert count.errors == ()
    assert done.kills > 0
    assert done.stops > 0
    assert count.acknowledged > 0


TOLD = Notes(
    tried=frozenset({"t.a.0", "t.a.1", "i.a.2", "i.a.3"}),
    put=frozenset({"t.a.0", "t.a.1", "i.a.2"}),
    done=frozenset({"t.a.0"}),
)
STORED = Stored(
    effects={"t.a.0": 1},
    ends={"a": 1},
    tasks=["t.a.1"],
    items=["i.a.2"],
    size=1,
    statistics={
        "tasks": {"ready": 1, "total": 1, "done": 1},
        "calls": {"put": 2, "take": 3, "ack": 1, "release": 1, "ttr": 1},
    },
)


def test_a_sound_database_has_no_errors() -> None:
    count = judged(TOLD, STORED)
    assert (count.acknowledged, count.done, count.left, count.errors) == (3, 1, 2, ())
    assert "nothing lost" in str(count)


@pytest.mark.parametrize(
    ("damaged", "wanted"),
    [
        (replace(STORED, items=[], size=0), "lost: 1, the first of them i.a.2"),
        (replace(STORED, effects={"t.a.0": 2}), "twice: 1, the first of them t.a.0"),
        (replace(STORED, items=["i.a.2", "i.a.2"], size=2), "twice: 1, the first of them i.a.2"),
        (replace(STORED, items=["i.a.2", "t.a.0"], size=2), "twice: 1, the first of them t.a.0"),
        (replace(STORED, items=["i.a.2", "x"], size=2), "from nowhere: 1, the first of them x"),
        (replace(STORED, effects={"t.a.1": 1}, tasks=["t.a.0"]), "told as done, without its effect: 1"),
        (replace(STORED, size=2), "the counter of the size of the items says 2, there are 1"),
        (replace(STORED, findings=("verify, timer",)), "verify, timer"),
        (replace(STORED, ends={"a": 2}), "the counter of the effects by process says 2, there are 1"),
    ],
    ids=[
        "lost",
        "effect twice",
        "item twice",
        "done and there",
        "nowhere",
        "done",
        "size",
        "findings",
        "ends",
    ],
)
def test_the_count_finds_damage(damaged: Stored, wanted: str) -> None:
    assert any(error.startswith(wanted) for error in judged(TOLD, damaged).errors)


def test_the_program_tells_its_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--minutes", "0.005", "--writers", "1", "--directory", str(tmp_path), "--seed", "1"]
    assert soak.main(arguments) == 0
    assert "nothing lost, nothing twice" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_it_with_a_count(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fdbqueue.testing.soak", "--minutes", "60", "--writers", "1"]
    rare = ["--pause", "1000"]  # a writer that is killed every moment may never come to a put
    with subprocess.Popen(
        [*command, *rare, "--directory", tmp_path], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            # Two programs have to start first, on a machine that may be busy.
            wait_until(
                lambda: any("put" in notes.read_text() for notes in tmp_path.glob("*/notes/*")),
                6 * PATIENCE_S,
            )
            program.send_signal(signal.SIGINT)
            said, _ = program.communicate(timeout=60)
        finally:
            program.kill()
    assert (program.returncode, list(tmp_path.iterdir())) == (0, [])
    assert "nothing lost, nothing twice" in said
