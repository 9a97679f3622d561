"""One test that is skipped without a FoundationDB cluster, so that the others need not be."""

import pytest

import fdbqueue
from tests.conftest import CLUSTER_FILE


@pytest.mark.skipif(CLUSTER_FILE is None, reason="FDB_CLUSTER_FILE names no cluster: its runs are left out")
def test_the_cluster_answers():
    """A cluster that was asked for must be there: a failure here explains all the others."""

    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        tr = db.create_transaction()
        tr.options.set_timeout(10_000)
        assert tr.get_read_version().wait() > 0
