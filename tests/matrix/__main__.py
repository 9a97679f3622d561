"""`make matrix`: each binding on each Python of this machine, as a table.

With FDB_CLUSTER_FILE set, each pair also works on that cluster, through the client library of this machine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.matrix.pairs import BINDINGS, PACKAGES, PYTHONS, NoPackages, install, python_of, smoke
from tests.matrix.smoke import OK

STEPS = ("import", "embedded", "cluster")
_CELL_MAX = 30
_LIBRARY = """
from fdbqueue.core import binding
binding.load()
print(binding.library_release())
"""


def main() -> int:
    cluster_file = os.environ.get("FDB_CLUSTER_FILE") or None
    cluster = cluster_file or "none, as FDB_CLUSTER_FILE is not set"
    print(f"client library (libfdb_c): {library()}; cluster: {cluster}\n")
    with tempfile.TemporaryDirectory() as directory:
        rows = list(tried(Path(directory), cluster_file))
    failed = [row for row in rows if set(row[2:]) - {OK, ""}]
    for row in failed:
        print("\nPython {}, binding {}: {}".format(*row[:2], "; ".join(set(row[2:]) - {OK, ""})))
    return int(bool(failed))


def library() -> str:
    ran = subprocess.run([sys.executable, "-c", _LIBRARY], capture_output=True, text=True)
    return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1]


def tried(directory: Path, cluster_file: str | None) -> Iterator[tuple[str, ...]]:
    """Try each pair, and print its row."""
    show(("Python", "binding", *STEPS))
    show(("---",) * (2 + len(STEPS)))
    for version in PYTHONS:
        python = python_of(version)
        if python is None:
            show((version, "", "not found", "", ""))
            continue
        for binding in BINDINGS:
            row = (version, binding, *outcomes(directory, version, python, binding, cluster_file))
            show(row)
            yield row


def outcomes(
    directory: Path, version: str, python: str, binding: str, cluster_file: str | None
) -> tuple[str, ...]:
    packages, bindings = directory / version, directory / binding
    try:
        if not packages.exists():
            install(python, packages, *PACKAGES)
        if not bindings.exists():
            install(python, bindings, f"foundationdb=={binding}.*")
    except NoPackages as error:
        return (f"no packages: {error}", "", "")
    found = smoke(python, packages, bindings, cluster_file=cluster_file)
    return tuple(found.get(step, "") for step in STEPS)


def show(row: tuple[str, ...]) -> None:
    cells = [(cell if len(cell) <= _CELL_MAX else "failed").ljust(8) for cell in row]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
