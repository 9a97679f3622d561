"""The README's promises: its programs are short and typed, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page import ROOT, examples_on, page
from tests.typed.user import mypy_finds

README = page("README.md")
EXAMPLES = examples_on(README)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_about_twenty_lines(example: str) -> None:
    assert len([line for line in example.splitlines() if line.strip()]) <= 22


def test_its_programs_are_typed(tmp_path: Path) -> None:
    files = [tmp_path / f"program_{number}.py" for number in range(len(EXAMPLES))]
    for file, program in zip(files, EXAMPLES, strict=True):
        file.write_text(program)
    assert mypy_finds(files, tmp_path) == []


def test_its_make_targets_exist() -> None:
    makefile = page("Makefile")
    targets = re.findall(r"`make (\w+)`", README)
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_commands_are_those_of_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fdbqueue.operate.cli", "--help"], capture_output=True, text=True, check=True
    )
    used = set(re.findall(r"\bfdbqueue (\w+)", README))
    assert used == {"put", "create", "work", "explain"}
    assert all(re.search(rf"^  {command} ", done.stdout, re.MULTILINE) for command in used)


def test_its_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert [target for target in targets if not (ROOT / target).is_file()] == []
