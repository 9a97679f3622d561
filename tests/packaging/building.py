"""Builds the wheel and the source distribution from a copy of the checkout."""

import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ran(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed, and return its standard output."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def ignored(folder: str, names: list[str]) -> set[str]:
    """Return the `names` in a folder that .gitignore leaves out of the checkout."""
    patterns = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    paths = {name: (Path(folder) / name).relative_to(ROOT).as_posix() for name in names}
    left_out = {name for name, path in paths.items() for pattern in patterns if _matches(path, pattern)}
    return left_out | {".git"}


def _matches(path: str, pattern: str) -> bool:
    """True if a pattern without a slash matches the name, or one with a slash the path from the root."""
    if "/" in pattern:
        return fnmatch(path, pattern.lstrip("/"))
    return fnmatch(path.rpartition("/")[2], pattern)


def copied(to: Path) -> Path:
    """Copy the checkout: a build in place would write into it while other tests read it."""
    shutil.copytree(ROOT, to, ignore=ignored)
    return to


def build(work: Path) -> Path:
    """Build the source distribution, and from it the wheel, as `make dist` does; return their directory."""
    tree, dist = copied(work / "tree"), work / "dist"
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree, cwd=work)
    return dist
