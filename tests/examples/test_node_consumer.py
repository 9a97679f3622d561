"""A consumer in Node keeps the vectors, and shares a queue with workers in Python while all are killed."""

import collections
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Subspace, TaskQueue
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.conformance import (
    Checked,
    Program,
    Vector,
    Verdict,
    checked,
    stored_vectors,
    vectors_in,
)
from tests.conftest import CLUSTER_FILE, TEST_ROOT
from tests.examples import mixed_fleet

CLIENT = Path(__file__).parents[2] / "clients" / "node"
NODE = shutil.which("node")
PATIENCE_S = 60.0
FLEET_S = float(os.environ.get("FDBQUEUE_TEST_FLEET_S", "180"))
VERBS = "open beat take ack renew release bury exhaust sweep end end_own release_taken forget put put_many"

pytestmark = pytest.mark.skipif(NODE is None, reason="it needs Node")


def answers(vectors: list[Vector]) -> list[Checked]:
    program = [str(NODE), str(mixed_fleet.PROGRAMS / "conformance.js")]
    return [*checked(lambda: Program(program, PATIENCE_S, RealRuntime()), stored_vectors()["root"], vectors)]


def test_the_consumer_conforms():
    found = answers([one for one in vectors_in(stored_vectors()) if one.kind in ("fifo", "fifottl")])
    assert {one.vector.name: one.differences for one in found if one.differences} == {}
    assert {one.vector.verb for one in found if one.verdict == Verdict.SAME} >= {*VERBS.split()}


def beside(keys: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The keys with the one result of the notice in a key of its own, behind the name of the call."""
    (notice,) = (key for key in keys if key.endswith(b"name-of-call"))
    left = {key: value for key, value in keys.items() if key != notice}
    suffix, value = keys[notice][18:38], keys[notice][38:]
    return left | {notice[:-13] + b"\x03name-of-call" + suffix: value}


def test_a_result_beside_a_notice_is_uncollected():
    vectors = [
        one for one in vectors_in(stored_vectors()) if one.kind == "fifo" and "uncollected" in one.name
    ]
    (vector,) = (one for one in vectors if one.verb == "release_taken")
    (found,) = answers([replace(vector, before=beside(vector.before), after=beside(vector.after))])
    assert (found.verdict, [*found.differences]) == (Verdict.SAME, [])


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
        [str(NODE), str(mixed_fleet.PROGRAMS / "worker.js")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
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


def run_node(space: Subspace, source: str) -> None:
    """Run a program with the arguments cluster, root, effects; it ends with status 0, and tells nothing."""
    root, effects = (space[name].key().hex() for name in ("root", "effects"))
    command = [str(NODE), "-e", source, str(CLUSTER_FILE), root, effects]
    done = subprocess.run(
        command, timeout=PATIENCE_S, cwd=CLIENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
  }, { concurrency: 20 })
  await shared.close()
}
main().then(() => process.exit(0))
"""


def test_a_loop_with_a_handler_acks_and_fails_tasks(space):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        queue = TaskQueue.create(db, "shared", "fifo", root=space["root"])
        queue.put_many(db, [{"n": n} for n in range(5)])
        run_node(space, WORKS)
        assert effects_of(db, space) == dict.fromkeys(range(5), 1)
        calls = queue.statistics(db)["calls"]
        assert (calls["take"], calls["ack"], calls["release"]) == (6, 5, 1)
        assert fdbqueue.verify(db, root=space["root"]).sound


TAKES_ON = """
const { Consumer, open } = require('./client')
const sessions = require('./sessions')
async function main() {
  const [cluster, root] = process.argv.slice(1)
  const shared = await Consumer.open(open(cluster), 'shared', { root: Buffer.from(root, 'hex') })
  const [before] = await shared.take()
  const e = BigInt(Date.now()) * 1000n
  await shared.run((tr) => sessions.begin(tr, shared.root, shared.session, e))
  const [after] = (await Promise.all([shared.take(), shared.take()])).flat()
  if (!before.signal.aborted || after.data.n !== 1 || (await shared.ack(after)) !== 'acked') process.exit(1)
  await shared.close()
}
main().then(() => process.exit(0))
"""


def test_a_take_opens_a_session_after_one_that_has_ended(space):
    with fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db:
        queue = TaskQueue.create(db, "shared", "fifo", root=space["root"])
        queue.put_many(db, [{"n": n} for n in range(2)])
        run_node(space, TAKES_ON)
        assert queue.statistics(db)["calls"]["ack"] == 1


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


@dataclass
class Plant:
    """A bug of the client in Node: a few of its lines changed. `faults`: it shows after unknown results."""

    what: str
    faults: int = 0
    changes: list[list[str]] = field(default_factory=list)

    def places(self, client: Path) -> Iterator[tuple[Path, str, str]]:
        """For each change its file, the old text and the new one."""
        for old, new in self.changes:
            yield next(path for path in client.glob("*.js") if old in path.read_text()), old, new


def planted_bugs() -> list[Plant]:
    found: list[Plant] = []
    for line in (mixed_fleet.PROGRAMS / "planted.txt").read_text().splitlines():
        match line[:4]:
            case "  - ":
                found[-1].changes.append([line[4:], ""])
            case "  + ":
                found[-1].changes[-1][1] = line[4:]
            case "  f=":
                found[-1].faults = int(line[4:])
            case start if not start.startswith("#"):
                found.append(Plant(line))
    return found


PLANTS = planted_bugs()


def test_each_planted_bug_has_its_one_place():
    sources = "".join(path.read_text() for path in CLIENT.glob("*.js"))
    counts = {(bug.what, old): sources.count(old) for bug in PLANTS for old, _ in bug.changes}
    assert {place: count for place, count in counts.items() if count != 1} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.what)
def test_the_judge_of_mixed_fleets_finds_a_bug(bug, space, tmp_path):
    client = shutil.copytree(CLIENT, tmp_path / "client", symlinks=True)
    for path, old, new in bug.places(client):
        path.write_text(path.read_text().replace(old, new))
    options = {"client": client, "faults": bug.faults, "patience_s": 40}
    with (
        fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db,
        mixed_fleet.started(db, space, tmp_path, **options) as fleet,
    ):
        for _ in range(5):
            collections.deque(fleet.run(20, 2.5), maxlen=0)
            if found := fleet.broken():
                print(bug.what, len(found), found[0][:300], sep="; ")
                return
    pytest.fail("no promise is broken")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fleet_that_meets_unknown_results_keeps_all(space, tmp_path):
    """The planted bugs that show after faults are no more than the bugs."""
    with (
        fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db,
        mixed_fleet.started(db, space, tmp_path, faults=10) as fleet,
    ):
        collections.deque(fleet.run(40, 2.5), maxlen=0)
        assert fleet.broken() == []
