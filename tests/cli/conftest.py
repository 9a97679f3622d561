"""The program, on every engine that several processes can share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.cli.shell import Shell, Within
from tests.conftest import CLUSTER_FILE


@pytest.fixture(params=["embedded", "fdb"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """The program, with a new database, or a new root on the cluster."""
    if request.param == "embedded":
        shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
        yield shell
        shell.end()
        return
    if CLUSTER_FILE is None:
        pytest.skip("FDB_CLUSTER_FILE names no cluster")
    root = ["fdbqueue-test-cli", os.urandom(8).hex()]
    shell = Shell(f"fdb:{CLUSTER_FILE}", root, tmp_path)
    yield shell
    shell.end()
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        db.clear_range_startswith(Subspace(tuple(root)).key())


@pytest.fixture
def program(shell: Shell, capfd: pytest.CaptureFixture[str]) -> Within:
    """The program, run within this process."""
    return Within(shell, capfd)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet tells its progress several times a second."""
    monkeypatch.setattr("fdbqueue.operate.cli.work.PLAIN_EVERY_S", 0.0)
    monkeypatch.setattr("fdbqueue.operate.cli.work.STALLED_S", 0.0)
