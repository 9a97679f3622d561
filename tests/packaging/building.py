"""Builds the wheel and the source distribution from a copy of the checkout."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ran(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed, and return its standard output."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def ignored() -> list[str]:
    """Return the names that .gitignore lists."""
    return [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if not line.startswith("#")]


def copied(to: Path) -> Path:
    """Copy the checkout: a build in place would write into it while other tests read it."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(".git", *ignored()))
    return to


def build(work: Path) -> Path:
    """Build the source distribution, and from it the wheel, as `make dist` does; return their directory."""
    tree, dist = copied(work / "tree"), work / "dist"
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree, cwd=work)
    return dist
