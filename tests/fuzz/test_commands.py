"""Every option of the command line meets hostile texts: one line of refusal, and nothing stored."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commit import first_seed
from tests.fuzz.commands import Program, lines, search

LABELS_EACH = 4


def test_hostile_options_are_refused_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounds: Callable[[int | None, int | None], int | None],
) -> None:
    working = tmp_path / "working" / "directory" / "of"
    working.mkdir(parents=True)
    monkeypatch.chdir(working)
    seed = first_seed()
    found = search(Program(tmp_path), lines(random.Random(seed), rounds(LABELS_EACH, None)))
    assert not found.violations, f"seed {seed}: {found}"
