"""The faults of the client library: their share, the count of errors, and the tests that stay out."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import buggify
from tests.by_hand import TESTS, makes_transactions

PROGRAM = """
import os, signal
from pathlib import Path
from tests import buggify

class Transaction:
    def on_error(self, error): return error

buggify._count_in(Path({directory!r}), Transaction)
for code in (1020, 1020, 1021): Transaction().on_error(code)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("given", ["0", "101", "5 %", "-5", "5.0"])
def test_a_share_is_a_whole_number_of_per_cent(given: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 100"):
        buggify.checked(given)


def test_errors_of_all_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process has counted all of its errors."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(directory=str(tmp_path))], cwd=TESTS.parent, check=False
        )
        assert done.returncode < 0
    monkeypatch.setenv(buggify._COUNTS, str(tmp_path))
    assert buggify.counted() == Counter({1020: 4, 1021: 2})
    assert buggify.told(5, buggify.counted()).endswith("4 of 1020, 2 of 1021")


@pytest.mark.parametrize(
    ("path", "name", "wanted"),
    [
        ("support.py", "begin", True),
        ("queue_support.py", "faulty", True),
        ("conftest.py", "db", False),
        ("test_receipts.py", "test_many_clients_with_failing_commits", True),
    ],
)
def test_tests_that_make_transactions_are_found(path: str, name: str, wanted: bool) -> None:
    assert makes_transactions(TESTS / path, name) == wanted
