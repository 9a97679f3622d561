"""docs/cli.md: its reference has the help texts, and its session runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"


def test_the_reference_has_the_help_texts() -> None:
    """`make docs` rewrites the reference."""
    check = [sys.executable, ROOT / "docs" / "cli_reference.py", "--check"]
    assert subprocess.run(check, check=False).returncode == 0


def test_the_session_runs(tmp_path: Path) -> None:
    (session,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = f'fdbqueue() {{ "{sys.executable}" -m fdbqueue.cli "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", program + session], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:8]) == [f"thumb {number}" for number in range(1, 9)]
    assert lines[8] == "status 1"
    assert lines[9].endswith('"oops"\tCommandFailed: exit status 2')
    assert "tasks.ready\t1" in lines
    assert "'thumbs' is gone" in done.stderr
