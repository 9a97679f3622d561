"""The tests of other projects, which `make upstream` downloads, in processes of their own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import SLOW

ROOT = Path(__file__).parents[2]
PLAIN = ["-p", "no:cacheprovider", "-p", "no:fdbqueue", "-p", "no:timeout", "-p", "no:xdist"]
"""No plugin of ours takes part. Their limits are for a quiet machine; the process has one of its own."""

LIMIT_S = 3_000 if SLOW else 240
"""A process that hangs is ended before the test around it, and not left behind."""


def source_of(release: str) -> Path:
    """The unpacked source distribution. Without it the test is skipped."""
    found = ROOT / ".upstream" / release
    if not found.exists():
        pytest.skip(f"{release} is not here: `make upstream` downloads it", allow_module_level=True)
    return found


def place_of(tests: Path, ours: Path, directory: Path, options: str = "") -> Path:
    """A directory with a copy of their tests, and our files beside them.

    Where they wait for a second, the copy waits for ten: their limits are for a quiet machine.
    """
    copy = shutil.copytree(tests, directory / tests.name)
    for file in copy.rglob("test_*.py"):
        file.write_text(re.sub(r"\btimeout=1\b(?!\.)", "timeout=10", file.read_text()))
    for file in ours.glob("*.py"):
        shutil.copy(file, copy)
    (directory / "pytest.ini").write_text(f"[pytest]\n{options}")
    return directory


def passed(place: Path, parts: str, left_out: Iterable[str], *options: str, **environment: str) -> int:
    """Run files or classes of `place`, without tests that are left out: their number, if all pass."""
    chosen = " and ".join(f"not {name}" for name in left_out)
    paths = {"PYTHONPATH": str(place), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLAIN, *options, *parts.split(), "-k", chosen],
        cwd=place,
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    counts = counts_of(ran.stdout)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
    assert not counts.keys() & {"skipped", "xfailed"}, ran.stdout[-5_000:]
    return counts.get("passed", 0) + counts.get("xpassed", 0)


def counts_of(output: str) -> dict[str, int]:
    """The last line of pytest: how many tests passed, were skipped, and so on."""
    return {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", output.splitlines()[-1])}
