"""The README's promises: its example prints what it says, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_says(example: str) -> None:
    said = re.findall(r"print\(.*\)  # (.*)", example)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == said != []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_about_twenty_lines(example: str) -> None:
    assert len([line for line in example.splitlines() if line.strip()]) <= 22


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_commands_are_those_of_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fdbqueue.cli", "--help"], capture_output=True, text=True, check=True
    )
    used = set(re.findall(r"fdbqueue (\w+) emails", README))
    assert used == {"put", "get", "size", "peek", "clear"}
    assert all(re.search(rf"^  {command} ", done.stdout, re.MULTILINE) for command in used)
