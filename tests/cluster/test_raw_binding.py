"""Databases and transactions of the user's own `fdb` are welcome everywhere, at any API version from 630 up.

The version is chosen once per process, so each is a process of its own.
"""

import importlib
import os
from pathlib import Path

import pytest

from fdbqueue.core import binding
from tests.conftest import CLUSTER_FILE, TEST_ROOT
from tests.support import run_program

pytestmark = pytest.mark.skipif(CLUSTER_FILE is None, reason="FDB_CLUSTER_FILE names no cluster")

PROGRAM = """
import fdb
{choice}

import fdbqueue
from fdb.subspace_impl import Subspace

db = fdb.open({cluster_file!r})
space = Subspace(rawPrefix={prefix!r})
root = space["root"]

try:
    items = fdbqueue.Queue(space["items"], root=root)
    items.enqueue(db, "first")

    @fdb.transactional
    def both(tr):
        items.enqueue(tr, "second")
        return items.dequeue(tr), items.size(tr)

    assert both(db) == ("first", 1)
    assert items.dequeue(db, timeout=5) == "second"
    assert items.dequeue(db) is None

    named = fdbqueue.Queue.named(db, "emails", root=root)
    named.enqueue_many(db, [1, 2, 3])
    assert named.dequeue_many(db, 2) == [1, 2]

    tasks = fdbqueue.TaskQueue.create(db, "tasks", "fifottl", ttr=30, root=root)
    with fdbqueue.Session(db, root=root) as session:
        for number in range(3):
            tasks.put(db, number, delay=number and 0.0)
        task = tasks.take(db, 5, session=session)
        tasks.touch(db, task, 5, session=session)

        @fdb.transactional
        def work(tr):
            tr[space["effect"]] = b"done"
            return tasks.ack(tr, task, session=session)

        work(db)
        other = tasks.take(db, 5, session=session)
        tasks.bury(db, other)
        assert tasks.kick(db, 1) == 1
    assert tasks.statistics(db)["tasks"]["ready"] == 2

    fair = fdbqueue.TaskQueue.create(db, "fair", "fair", weights={{"a": 2}}, root=root)
    for key in "aab":
        fair.put(db, key, key=key)
    with fdbqueue.Session(db, root=root) as session:
        got = [fair.take(db, 5, session=session).data for _ in range(3)]
    assert sorted(got) == ["a", "a", "b"], got

    rounds = fdbqueue.FairQueue(space["rounds"], key=lambda item: item[0])
    for item in ("a1", "a2", "b1"):
        rounds.put(db, item)
    assert [rounds.get(db) for _ in range(3)] == ["a1", "b1", "a2"]
    print("all well")
finally:
    db.clear_range_startswith(space.key())
"""


def run_well(directory: Path, choice: str) -> None:
    prefix = TEST_ROOT[os.urandom(8)].key()
    program = PROGRAM.format(choice=choice, cluster_file=CLUSTER_FILE, prefix=prefix)
    assert run_program(directory, program) == "all well\n"


@pytest.mark.parametrize("version", [630, 700, 710, 720, 730])
def test_raw_databases_and_transactions_of_every_api_version(tmp_path: Path, version: int) -> None:
    """A program that chooses for itself needs a library that is not older than the binding."""
    newest = importlib.import_module("fdb.impl")._capi.fdb_get_max_api_version()
    if not version <= binding.LATEST_API_VERSION <= newest:
        pytest.skip(
            f"a binding of {binding.LATEST_API_VERSION} above a library of {newest} refuses {version}"
        )
    run_well(tmp_path, f"fdb.api_version({version})")


def test_raw_databases_after_fdbqueue_has_chosen_the_version(tmp_path: Path) -> None:
    """With every pair of binding and library: the program's own choice of 710 comes second."""
    opening = f"import fdbqueue; fdbqueue.open({f'fdb:{CLUSTER_FILE}'!r}).close()"
    run_well(tmp_path, f"{opening}; fdb.api_version(710)")
