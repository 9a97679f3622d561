"""The README's promises: its examples print the output in their comments, its commands exist."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.page import examples_on, page, printed, promised
from tests.typed.user import mypy_finds

README = page("README.md")
EXAMPLES = examples_on(README)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_the_output_in_its_comments(example: str) -> None:
    assert printed(example) == promised(example) != []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_about_twenty_lines(example: str) -> None:
    assert len([line for line in example.splitlines() if line.strip()]) <= 22


def test_its_programs_are_typed(tmp_path: Path) -> None:
    (emails,) = re.findall(r"^    cat > emails.py <<'END'\n(.*?)^    END$", README, re.MULTILINE | re.DOTALL)
    programs = [*EXAMPLES, textwrap.dedent(emails)]
    files = [tmp_path / f"program_{number}.py" for number in range(len(programs))]
    for file, program in zip(files, programs, strict=True):
        file.write_text(program)
    assert mypy_finds(files, tmp_path) == []


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
    """All but the installation and the end by Ctrl-C, in a directory that has some docs."""
    (chapter,) = re.findall(r"^## From nothing to a fleet\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"(?:^    .*\n|^\n(?=\n?    ))+", chapter, re.MULTILINE)
    install, *rest = textwrap.dedent("".join(commands)).strip().splitlines()
    assert "# until Ctrl-C" in rest[-1]
    rest[-1] = rest[-1].replace("--processes", "--until-empty --processes")
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
    assert sorted(done.stdout.splitlines()) == ["2 docs/one.md", "2 docs/two.md", "sent to ada@example.com"]
