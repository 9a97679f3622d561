"""A producer in Node leaves the keys of the layout, and workers in Python take its tasks."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Queue, Subspace, TaskQueue
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.conformance import Program, Verdict, checked, stored_vectors, vectors_in
from tests.conftest import CLUSTER_FILE, TEST_ROOT

FOLDER = Path(__file__).parents[2] / "examples" / "producer-node"
CLIENT = Path(__file__).parents[2] / "clients" / "node"
PROGRAMS = Path(__file__).parents[1] / "node"
NODE = shutil.which("node")
KINDS = ("queue", "fifo", "fifottl", "limfifottl")
PATIENCE_S = 60.0

pytestmark = pytest.mark.skipif(NODE is None, reason="it needs Node")


def test_the_producer_conforms():
    stored = stored_vectors()
    wanted = ("put", "put_many", "enqueue", "enqueue_many")
    vectors = [one for one in vectors_in(stored) if one.kind in KINDS and one.verb in wanted]
    program = [str(NODE), str(PROGRAMS / "conformance.js")]
    found = [*checked(lambda: Program(program, PATIENCE_S, RealRuntime()), stored["root"], vectors)]
    assert {one.vector.name: one.differences for one in found if one.differences} == {}
    assert {one.vector.kind for one in found if one.verdict == Verdict.SAME} == set(KINDS)


@pytest.fixture
def root() -> Iterator[Subspace]:
    """A root of its own on the cluster, which is removed."""
    if CLUSTER_FILE is None or not (CLIENT / "node_modules" / "foundationdb").is_dir():
        pytest.skip("it needs FDB_CLUSTER_FILE, and `npm install` in clients/node")
    one = TEST_ROOT["producer-node"][os.urandom(8)]
    yield one
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        db.clear_range_startswith(one.key())


def produce(root: Subspace, *arguments: str) -> None:
    command = [str(NODE), str(FOLDER / "producer.js"), *arguments, "--root", root.key().hex()]
    environment = os.environ | {"FDB_CLUSTER_FILE": str(CLUSTER_FILE)}
    subprocess.run(command, check=True, timeout=PATIENCE_S, env=environment)


def test_workers_in_python_take_its_tasks(root):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db, ThreadPoolExecutor() as threads:
        mails = TaskQueue.create(db, "mails", "fifottl", root=root)
        events = Queue.named(db, "events", root=root)
        waiting = threads.submit(mails.take, db, PATIENCE_S)
        first_event = threads.submit(events.dequeue, db, None, PATIENCE_S)
        produce(root, "put", "mails", "17", "--pri", "3")
        produce(root, "enqueue", "events", "17", "18", "--receipt")
        task = waiting.result()
        mails.ack(db, task)
        produce(root, "put", "mails", "18", "19", "--receipt", "--delay", "0.1")
        assert (task.data, task.pri, first_event.result()) == ({"order": "17"}, 3, {"order": "17"})
        assert [mails.take(db, PATIENCE_S).data for _ in range(2)] == [{"order": "18"}, {"order": "19"}]
        assert (events.dequeue(db), events.size(db)) == ({"order": "18"}, 0)
        counts = mails.statistics(db)
        assert (counts["calls"]["put"], counts["tasks"]["taken"], counts["tasks"]["done"]) == (3, 2, 1)
        assert fdbqueue.verify(db, root=root).sound


def test_a_queue_that_it_does_not_know_is_refused(root):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        tenants = TaskQueue.create(db, "tenants", "utube", root=root)
        with pytest.raises(subprocess.CalledProcessError):
            produce(root, "put", "tenants", "17")
        assert tenants.statistics(db)["tasks"]["total"] == 0
