"""docs/cli.md: its reference has the help texts."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_has_the_help_texts() -> None:
    """`make docs` rewrites the reference."""
    check = [sys.executable, ROOT / "docs" / "cli_reference.py", "--check"]
    assert subprocess.run(check, check=False).returncode == 0
