"""A backup of one cluster, restored into a younger one, whose versions are lower. Both are our own."""

from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core.database import run
from loadtest.drills.servers import FDBCLI, FDBSERVER, Servers
from tests.conftest import CLUSTER_FILE, TEST_ROOT
from tests.restoring.support import LongAgo, make_a_root, require_working, restore, waiting_for

if CLUSTER_FILE is None:
    pytest.skip("FDB_CLUSTER_FILE names no cluster", allow_module_level=True)
if FDBSERVER is None or FDBCLI is None:
    pytest.skip("no fdbserver and fdbcli on the PATH for two clusters", allow_module_level=True)


OLDER_VERSION = 10**12  # a million versions a second: some days


def own_cluster(directory: Path) -> Servers:
    directory.mkdir()
    return Servers(directory)


def version_of(db: fdbqueue.Database) -> int:
    found: int = run(db, lambda tr: tr.get_read_version().wait())
    return found


def test_a_root_keeps_working_in_a_younger_cluster(tmp_path: Path) -> None:
    root = TEST_ROOT["restore"]
    with (
        own_cluster(tmp_path / "older") as older,
        own_cluster(tmp_path / "younger") as younger,
        fdbqueue.open(f"fdb:{younger.cluster_file}") as target,
        fdbqueue.open(f"fdb:{older.cluster_file}", runtime=LongAgo()) as source,
    ):
        older.ask(f"advanceversion {OLDER_VERSION}")
        assert version_of(target) < version_of(source)
        make_a_root(source, root)
        with waiting_for("waited", source, root):
            restore(source, target, root.key())
        require_working(target, root)
