"""A consumer in Node keeps the vectors, and shares a queue with workers in Python while all are killed."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Subspace, TaskQueue
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.conformance import Program, Verdict, checked, stored_vectors, vectors_in
from tests.conftest import CLUSTER_FILE, TEST_ROOT

CLIENT = Path(__file__).parents[2] / "clients" / "node"
NODE = shutil.which("node")
PATIENCE_S = 60.0
FLEET_S = float(os.environ.get("FDBQUEUE_TEST_FLEET_S", "180"))
VERBS = "open beat take ack renew release bury exhaust sweep end end_own release_taken forget put put_many"

pytestmark = pytest.mark.skipif(NODE is None, reason="it needs Node")


def test_the_consumer_conforms():
    stored = stored_vectors()
    vectors = [one for one in vectors_in(stored) if one.kind in ("fifo", "fifottl")]
    program = [str(NODE), str(CLIENT / "conformance.js")]
    found = [*checked(lambda: Program(program, PATIENCE_S, RealRuntime()), stored["root"], vectors)]
    assert {one.vector.name: one.differences for one in found if one.differences} == {}
    assert {one.vector.verb for one in found if one.verdict == Verdict.SAME} >= {*VERBS.split()}


@pytest.fixture
def space() -> Iterator[Subspace]:
    """A place on the cluster, which is removed."""
    if CLUSTER_FILE is None or not (CLIENT / "node_modules" / "foundationdb").is_dir():
        pytest.skip("it needs FDB_CLUSTER_FILE, and `npm install` in clients/node")
    one = TEST_ROOT["node-consumer"][os.urandom(8)]
    yield one
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        db.clear_range_startswith(one.key())


def text(value: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in value)


def node_worker(space: Subspace) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [str(NODE), str(CLIENT / "worker.js")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    places = {name: text(space[name].key()) for name in ("root", "effects")}
    told = {"cluster": str(CLUSTER_FILE), "queue": "shared", "session_s": 3, **places}
    assert process.stdin
    process.stdin.write(json.dumps(told) + "\n")
    process.stdin.flush()
    return process


def python_worker(space: Subspace) -> subprocess.Popen[str]:
    module = [sys.executable, "-m", "tests.examples.node_fleet_worker", f"fdb:{CLUSTER_FILE}"]
    root, effects = (space[name].key().hex() for name in ("root", "effects"))
    return subprocess.Popen([*module, root, "shared", effects], text=True)


def effects_of(db: fdbqueue.Database, space: Subspace) -> dict[int, int]:
    """The number of effects of each task that has any."""
    rows = db.get_range_startswith(space["effects"].key())
    return {int.from_bytes(row.key[-4:], "big"): int.from_bytes(row.value[:4], "little") for row in rows}


def ended_in_python(db: fdbqueue.Database, space: Subspace) -> int:
    return sum(row.value[4] for row in db.get_range_startswith(space["effects"].key()))


def kill(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.communicate()


def test_a_worker_in_node_takes_and_ends_tasks(space):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        queue = TaskQueue.create(db, "shared", "fifottl", ttr=10, root=space["root"])
        for n in range(5):
            queue.put(db, {"n": n, "do": "ack", "s": 0})
        process = node_worker(space)
        last = time.monotonic() + PATIENCE_S
        while queue.statistics(db)["tasks"]["total"] and time.monotonic() < last:
            time.sleep(0.1)  # another process commits
        process.communicate(timeout=PATIENCE_S)  # the end of its input
        assert (process.returncode, effects_of(db, space)) == (0, dict.fromkeys(range(5), 1))
        assert fdbqueue.verify(db, root=space["root"]).sound


WORKS = """
const { Consumer, open } = require('./client')
async function main() {
  const [cluster, root, effects] = process.argv.slice(1)
  const options = { root: Buffer.from(root, 'hex'), backoff: [0.01, 1, 1] }
  const shared = await Consumer.open(open(cluster), 'shared', options)
  let left = 5
  await shared.work(async (task) => {
    if (task.data.n === 3 && task.attempts === 1n) throw new TypeError('not yet')
    if (--left === 0) shared.stop()
    const key = Buffer.from(`${effects}${task.data.n.toString(16).padStart(8, '0')}`, 'hex')
    return (tn) => tn.add(key, Buffer.from('0100000000000000', 'hex'))
  }, { concurrency: 2 })
  await shared.close()
}
main().then(() => process.exit(0))
"""


def test_a_loop_with_a_handler_acks_and_fails_tasks(space):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        queue = TaskQueue.create(db, "shared", "fifo", root=space["root"])
        queue.put_many(db, [{"n": n} for n in range(5)])
        root, effects = (space[name].key().hex() for name in ("root", "effects"))
        command = [str(NODE), "-e", WORKS, str(CLUSTER_FILE), root, effects]
        subprocess.run(command, check=True, timeout=PATIENCE_S, cwd=CLIENT)
        assert effects_of(db, space) == dict.fromkeys(range(5), 1)
        calls = queue.statistics(db)["calls"]
        assert (calls["take"], calls["ack"], calls["release"]) == (6, 5, 1)
        assert fdbqueue.verify(db, root=space["root"]).sound


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_mixed_fleets_lose_nothing_while_they_are_killed(space):
    dice = random.Random(7)
    makers = [node_worker, python_worker] * 2
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        queue = TaskQueue.create(db, "shared", "fifottl", ttr=2, attempts=float("inf"), root=space["root"])
        workers = [make(space) for make in makers]
        count, kills, last = 0, [0, 0], time.monotonic() + FLEET_S
        while time.monotonic() < last:
            if queue.statistics(db)["tasks"]["ready"] < 200:
                queue.put_many(db, [{"n": count + n, "do": "ack", "s": 0.01} for n in range(50)])
                count += 50
            if dice.random() < 0.2:
                at = dice.randrange(len(workers))
                kill(workers[at])
                workers[at] = makers[at](space)
                kills[at % 2] += 1
            time.sleep(0.2)
        while queue.statistics(db)["tasks"]["total"] and time.monotonic() < last + PATIENCE_S:
            time.sleep(0.2)
        for worker in workers:
            kill(worker)
        calls = queue.statistics(db)["calls"]
        ours = ended_in_python(db, space)
        print(f"{count} tasks, {ours} ended in Python; kills of each: {kills}; {calls}")
        assert 0 < ours < count
        assert min(kills) > 0
        assert effects_of(db, space) == dict.fromkeys(range(count), 1)
        assert fdbqueue.verify(db, root=space["root"]).sound
