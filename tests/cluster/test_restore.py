"""A backup of one cluster, restored into a younger one of our own, whose versions are lower."""

import os
import time
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.database import run
from fdbqueue.runtime import RealRuntime
from tests.cluster.servers import FDBCLI, FDBSERVER, Servers
from tests.conftest import CLUSTER_FILE, TEST_ROOT
from tests.restoring.support import LONG_AGO_S, make_a_root, require_working, restore, waiting_for

if CLUSTER_FILE is None:
    pytest.skip("FDB_CLUSTER_FILE names no cluster", allow_module_level=True)
if FDBSERVER is None or FDBCLI is None:
    pytest.skip("no fdbserver and fdbcli on the PATH for a second cluster", allow_module_level=True)


class LongAgo(RealRuntime):
    def now(self) -> float:
        return time.time() - LONG_AGO_S


def version_of(db: fdbqueue.Database) -> int:
    found: int = run(db, lambda tr: tr.get_read_version().wait())
    return found


def test_a_root_keeps_working_in_a_younger_cluster(tmp_path: Path) -> None:
    root = TEST_ROOT["restore"][os.urandom(8)]
    with (
        Servers(tmp_path) as servers,
        fdbqueue.open(f"fdb:{servers.cluster_file}") as target,
        fdbqueue.open(f"fdb:{CLUSTER_FILE}", runtime=LongAgo()) as source,
    ):
        assert version_of(target) < version_of(source)
        make_a_root(source, root)
        with waiting_for("waited", source, root):
            restore(source, target, root.key())
        source.clear_range_startswith(root.key())
        require_working(target, root)
