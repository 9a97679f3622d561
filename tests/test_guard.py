"""Tests write nothing into a cluster but below prefixes of their own, and meet the faults of its client."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.embedded.transaction import Transaction
from tests import buggify, guard
from tests.by_hand import TESTS, makes_transactions
from tests.guard import TEST_ROOT, OutsideOfTests, require_own

OWN = TEST_ROOT[b"random"].key()
FOREIGN = Subspace(("fdbqueue",)).key()


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (OWN, OWN),
        (OWN, OWN + b"\xff"),
        (OWN, b""),  # inverted: refused by the client
        (b"\xff", b"\xff"),  # nothing
        (b"\xff/conf", b"\xff/conf"),  # refused by the cluster
    ],
)
def test_own_keys_and_refused_ones_may_be_written(begin, end):
    require_own(begin, end)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (b"", b"\xff"),
        (FOREIGN, FOREIGN),
        (OWN, b"\xff"),
        (TEST_ROOT.key(), TEST_ROOT.key() + b"\xff"),  # of other runs too
        (b"\xfe", b"\xff"),
    ],
)
def test_other_keys_may_not_be_written(begin, end):
    with pytest.raises(OutsideOfTests):
        require_own(begin, end)


@pytest.mark.parametrize(
    "write",
    [
        lambda tr: tr.set(FOREIGN, b""),
        lambda tr: tr.clear(FOREIGN),
        lambda tr: tr.clear_range(None, None),
        lambda tr: tr.clear_range_startswith(FOREIGN),
        lambda tr: tr.add(FOREIGN, b"\x01"),
        lambda tr: tr.set_versionstamped_key(FOREIGN + bytes(14), b""),
        lambda tr: tr.__setitem__(FOREIGN, b""),
        lambda tr: tr.__delitem__(slice(b"", FOREIGN)),
    ],
)
def test_every_way_to_write_is_guarded(write):
    class Guarded(Transaction):
        pass

    guard.guard(Guarded)
    with fdbqueue.open("memory:") as db, pytest.raises(OutsideOfTests):
        write(Guarded(db.engine))


def test_no_program_finds_the_cluster_by_itself():
    assert "FDB_CLUSTER_FILE" not in os.environ


def test_a_program_of_a_test_has_another_default_root():
    tree = Path(guard.__file__).parents[1]
    path = os.pathsep.join([str(tree / "tests" / "guarded"), str(tree)])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from fdbqueue.core.root_keys import DEFAULT_ROOT; print(DEFAULT_ROOT.key().hex())",
        ],
        env=os.environ | {"FDBQUEUE_TEST_RUN": "aa" * 8, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert bytes.fromhex(done.stdout) == TEST_ROOT["root"][b"\xaa" * 8].key()


# The faults of the client library: their share, the count of errors, and the tests that stay out.

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
