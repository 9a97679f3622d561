"""`make django`: the tests of this folder with Django 6.0 and the newest, each in its own environment."""

import os
import subprocess
import sys
from pathlib import Path

from tests.matrix.pairs import python_of

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.14", "3.13", "3.12")
DJANGOS = ("django==6.0.*", "django>6.0")
NEEDED = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")


def main() -> int:
    python = next((found for version in VERSIONS if (found := python_of(version))), None)
    if python is None:
        print("No Python 3.12 or later is here: the tests with Django 6.0 are left out.")
        return 0
    return max(tested(python, wanted) for wanted in DJANGOS)


def tested(python: str, wanted: str) -> int:
    """The exit status of the tests with that Django."""
    place = ROOT / ".venv-django" / wanted.strip(".*").translate(str.maketrans("<>=", "---"))
    made = environment(python, place, wanted)
    version = subprocess.run(
        [made, "-m", "django", "--version"], capture_output=True, text=True, check=True
    ).stdout
    print(f"Django {version.strip()}", flush=True)
    command = [made, "-m", "pytest", "--numprocesses", "2", "tests/django"]
    return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT).returncode


def environment(python: str, place: Path, wanted: str) -> str:
    """The Python of an environment with that Django, made at its first use."""
    inside = place / "bin" / "python"
    ready = place / ".ready"
    if not ready.exists():
        subprocess.run([python, "-m", "venv", place], check=True)
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--editable", f"{ROOT}[django]", wanted, *NEEDED], check=True)
        ready.touch()
    return os.fspath(inside)


if __name__ == "__main__":
    sys.exit(main())
