"""Run mypy as a user of the package does: `--strict`, and no setting of this project."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fdbqueue

ROOT = Path(fdbqueue.__file__).parents[1]
CHECK = (
    *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
    "--follow-imports=silent",  # the package is checked with settings of its own
    *("--cache-dir", str(ROOT / ".mypy_cache" / "users")),  # kept between runs: a first run takes 15 s
)


def mypy_finds(programs: Sequence[Path], cwd: Path) -> list[str]:
    """Return the lines that mypy prints for `programs`."""
    # mypy does not follow the import hook of an editable install.
    done = subprocess.run(
        [*CHECK, *map(str, programs)],
        cwd=cwd,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()
