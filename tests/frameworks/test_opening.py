"""The database of a broker: opened at its first use. A forked child uses it as far as its engine allows."""

import os
import signal
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core.errors import ClusterForked
from fdbqueue.integrations.common import Opening
from tests.conftest import CLUSTER_FILE
from tests.support import in_child

needs_cluster = pytest.mark.skipif(CLUSTER_FILE is None, reason="needs a cluster: $FDB_CLUSTER_FILE")
KEY = b"fdbqueue-test-opening"
HANGS_S = 20


def test_nothing_is_opened_before_its_use(tmp_path: Path) -> None:
    opening = Opening(f"embedded:{tmp_path}/data")
    assert not (tmp_path / "data").exists()
    opening.database()
    opening.close()
    assert (tmp_path / "data").exists()


def test_an_open_database_stays_open() -> None:
    with fdbqueue.open("memory:") as db:
        opening = Opening(db)
        assert opening.database() is db
        opening.close()
        assert not db.closed


def test_a_closed_one_is_opened_again_at_its_next_use(tmp_path: Path) -> None:
    opening = Opening(f"embedded:{tmp_path}/data")
    first = opening.database()
    opening.close()
    assert first.closed
    assert not opening.database().closed
    opening.close()


def test_a_forked_child_goes_on_with_a_directory(tmp_path: Path) -> None:
    opening = Opening(f"embedded:{tmp_path}/data")
    opening.database()[KEY] = b"parent"
    assert in_child(lambda: opening.database()[KEY] == b"parent")
    opening.close()


def is_refused(opening: Opening) -> bool:
    try:
        opening.database()
    except ClusterForked:
        return True
    return False


@needs_cluster
def test_a_forked_child_of_a_process_with_a_cluster_is_told_so() -> None:
    """Both the opened one and another one: a call of either would wait for ever."""
    opening, other = Opening(f"fdb:{CLUSTER_FILE}"), Opening(f"fdb:{CLUSTER_FILE}")
    opening.database().create_transaction()
    assert in_child(lambda: is_refused(opening) and is_refused(other))
    opening.close()


def test_a_child_refuses_the_cluster_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a cluster: the handle of the parent is not used."""

    def open_once(url: str) -> str:
        if os.getpid() != parent:
            raise ClusterForked(url=url)
        return "the database"

    parent = os.getpid()
    monkeypatch.setattr("fdbqueue.integrations.common.open_database", open_once)
    opening = Opening("fdb:/nowhere/fdb.cluster")
    assert opening.database() == "the database"
    assert in_child(lambda: is_refused(opening))


def test_a_forked_child_needs_no_lock_of_its_parent(tmp_path: Path) -> None:
    """A thread of the parent may have been opening the database at the fork."""
    opening = Opening(f"embedded:{tmp_path}/data")
    with opening._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(HANGS_S)
            opening.database()[KEY] = b"child"
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert opening.database()[KEY] == b"child"
    opening.close()
