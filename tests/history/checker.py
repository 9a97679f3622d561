"""The program of tests/porcupine/, if FDBQUEUE_PORCUPINE names it."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from fdbqueue.testing.history import Call, lines_of

PORCUPINE = os.environ.get("FDBQUEUE_PORCUPINE")
needs_porcupine = pytest.mark.skipif(
    PORCUPINE is None, reason="FDBQUEUE_PORCUPINE names no checker: see tests/porcupine/README.md"
)


def by_porcupine(calls: Iterable[Call], model: str, ttr_us: int, directory: Path) -> str:
    """The verdict of Porcupine on a history."""
    assert PORCUPINE is not None
    path = directory / "history.jsonl"
    path.write_text("\n".join(lines_of(calls)))
    done = subprocess.run(
        [PORCUPINE, model, str(ttr_us), path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
