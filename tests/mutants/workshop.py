"""A temporary copy of the repository, in which one module at a time is changed. The original is only read."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout")
"""pytest with the one plugin that tests need: others cost seconds for each start."""

_LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "site", "load-report", "out", "fdbqueue-data"
)


@dataclass(frozen=True)
class Ended:
    """The end of a program: its status, None after the time limit, and its output."""

    status: int | None
    output: str


class Workshop:
    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self.root = folder / "copy"
        shutil.copytree(repository, self.root, ignore=_LEFT_OUT)
        where = self.run(["-c", "import fdbqueue; print(fdbqueue.__file__)"], 60).output.strip()
        if Path(where).parent != self.root / "fdbqueue":
            raise RuntimeError(f"programs in the copy would import {where}")

    def run(self, arguments: Sequence[str], seconds: float) -> Ended:
        """Run Python in the copy, for at most `seconds`. Its children end with it."""
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONHASHSEED": "0"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment.pop("FDB_CLUSTER_FILE", None)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ended(process.returncode, output)
        except subprocess.TimeoutExpired:
            return Ended(None, _ended(process))
        finally:
            _end(process)

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the change for the duration of the context."""
        path = self.root / mutant.file
        sound = (self.repository / mutant.file).read_text()
        _write(path, mutant.planted_in(sound))
        try:
            yield
        finally:
            _write(path, sound)

    def refresh(self, files: Sequence[str]) -> None:
        """Copy these files again."""
        for file in files:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.repository / file, self.root / file)


@contextmanager
def workshop(repository: Path) -> Iterator[Workshop]:
    with tempfile.TemporaryDirectory(prefix="fdbqueue-mutants-", ignore_cleanup_errors=True) as folder:
        yield Workshop(repository, Path(folder))


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    # Bytecode is known by the second and the size of its source: two mutants may share both.
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink()


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children, which are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[str]) -> str:
    _end(process)
    with suppress(subprocess.TimeoutExpired):  # a child of another group may hold the pipe
        return process.communicate(timeout=5)[0]
    return ""
