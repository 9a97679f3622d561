"""The README's promises: its example prints what it says, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page import examples_on, page, printed, promised

README = page("README.md")
EXAMPLES = examples_on(README)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_says(example: str) -> None:
    assert printed(example) == promised(example) != []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_about_twenty_lines(example: str) -> None:
    assert len([line for line in example.splitlines() if line.strip()]) <= 22


def test_its_make_targets_exist() -> None:
    makefile = page("Makefile")
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_commands_are_those_of_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fdbqueue.cli", "--help"], capture_output=True, text=True, check=True
    )
    used = set(re.findall(r"\bfdbqueue (\w+) (?:emails|words|notes)", README))
    assert used == {"put", "get", "size", "peek", "clear", "create", "work", "tasks"}
    assert all(re.search(rf"^  {command} ", done.stdout, re.MULTILINE) for command in used)


def test_from_nothing_to_a_fleet_is_as_written(tmp_path: Path) -> None:
    """All but the installation, in a directory that has some docs."""
    (commands,) = re.findall(r"^## From nothing to a fleet\n\n((?:    .*\n)+)", README, re.MULTILINE)
    install, *rest = commands.splitlines()
    assert "pip install -e '.[cli]'" in install
    (tmp_path / "docs").mkdir()
    for name in ("one", "two"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"{name} word\n")
    program = f'fdbqueue() {{ "{sys.executable}" -m fdbqueue.cli "$@"; }}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join([program, *rest])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["2 docs/one.md", "2 docs/two.md"]
