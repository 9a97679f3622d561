"""A consumer in Node keeps the vectors, and shares a queue with workers in Python while all are killed."""

import collections
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Subspace, TaskQueue
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.conformance import Program, Verdict, checked, stored_vectors, vectors_in
from tests.conftest import CLUSTER_FILE, TEST_ROOT
from tests.examples import mixed_fleet

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


def effects_of(db: fdbqueue.Database, space: Subspace) -> dict[int, int]:
    """The number of effects of each task that has any."""
    rows = db.get_range_startswith(space["effects"].key())
    return {int.from_bytes(row.key[-4:], "big"): int.from_bytes(row.value[:4], "little") for row in rows}


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
@pytest.mark.timeout(4500)
def test_mixed_fleets_lose_nothing_while_they_are_killed(space, tmp_path):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db, mixed_fleet.started(db, space, tmp_path) as fleet:
        for line in fleet.run(FLEET_S, 0.4):
            print(line)
        assert fleet.broken() == []
        in_python = sum(count for _, count in fleet.effects().values())
        assert 0 < in_python < len(fleet.puts)
        assert set(fleet.kills) == {"node", "python"}


PLANTS = {
    "an ack whose token is of another lease": (
        "(lease.token ? task.token.equals(lease.token) : task.session.equals(lease.session))",
        "true",
    ),
    "a take that relies on no record": ("tr.relyOn(changes.key(1, task.id))", "null"),
    "a take that is not counted": ("attempts: task.attempts + 1n", "attempts: task.attempts"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS)
def test_the_judge_of_mixed_fleets_finds_a_bug(plant, space, tmp_path):
    client = shutil.copytree(CLIENT, tmp_path / "client", symlinks=True)
    right, wrong = PLANTS[plant]
    path = next(one for one in client.glob("*.js") if right in one.read_text())
    path.write_text(path.read_text().replace(right, wrong))
    with (
        fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db,
        mixed_fleet.started(db, space, tmp_path, client) as fleet,
    ):
        for _ in range(3):
            collections.deque(fleet.run(30, 1.5), maxlen=0)
            if fleet.broken():
                return
    pytest.fail("no promise is broken")
