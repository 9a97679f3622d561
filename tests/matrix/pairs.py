"""Pythons of this machine, packages for them, and the smoke test of one pair of Python and binding."""

import json
import os
import shutil
import subprocess
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
BINDINGS = ("7.1", "7.3", "7.4", "8.0")
TREE = Path(__file__).parents[2]
PACKAGES = ("lmdb>=3,<4", "msgspec>=0.19", "sortedcontainers>=2.4")
_SMOKE_S = 120


class NoPackages(Exception):
    """pip found no package for this Python: `str(error)` is its last line."""


def python_of(version: str) -> str | None:
    """Return the interpreter of a version, on the PATH or of pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
    return next((path for path in found if path and _is(path, version)), None)


def _is(path: str, version: str) -> bool:
    """True if `path` runs: a shim of pyenv stands on the PATH for versions that are not chosen, too."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    ran = subprocess.run([path, "-c", program], capture_output=True, text=True)
    return ran.stdout.strip() == version


def install(python: str, directory: Path, *requirements: str) -> None:
    """Install packages into a directory. Raises NoPackages."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    bounds = ["--retries", "1", "--timeout", "10", "--target", str(directory)]
    ran = subprocess.run([*command, *bounds, *requirements], capture_output=True, text=True)
    if ran.returncode:
        raise NoPackages((ran.stderr.strip() or "pip failed").splitlines()[-1])


def smoke(python: str, *directories: Path, cluster_file: str | None = None) -> dict[str, str]:
    """Return the outcome of each step: "ok", or the line of its error."""
    path = os.pathsep.join(map(str, (TREE, *directories)))
    environment = os.environ | {"PYTHONPATH": path, "FDB_CLUSTER_FILE": cluster_file or ""}
    command = [python, "-s", str(Path(__file__).with_name("smoke.py"))]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_SMOKE_S)
    if ran.returncode:
        return {"import": ran.stderr.strip().splitlines()[-1]}
    outcomes: dict[str, str] = json.loads(ran.stdout)
    return outcomes
