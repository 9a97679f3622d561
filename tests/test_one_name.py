"""A process that uses one name of the package ends the leases, groups and schedules of all others.

Rooms that do such work are named in tables, and are imported when they are first needed. Each row runs in
fresh processes: the first one sets something up and is killed, the second one has the one name only.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CLUSTER_FILE

ROOT = Path(__file__).parents[1]
DIE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
FIRST = "import sys, json, fdbqueue; url, name = sys.argv[1:]; db = fdbqueue.open(url, session_ttr_s=1)\n"
ROWS = {
    "a dead worker's task comes back": (
        "q = fdbqueue.TaskQueue.create(db, name, 'fifottl', ttr=300); q.put(db, 'back'); q.take(db)",
        "q = fdbqueue.TaskQueue.open(db, name); print(json.dumps(q.take(db, timeout=60).data))",
    ),
    "a dead worker's task comes back beside a session": (
        "q = fdbqueue.TaskQueue.create(db, name, 'fifottl', ttr=300); q.put(db, 'back'); q.take(db)",
        "from fdbqueue import Session\n"
        "with Session(db):\n"
        "    import time\n"
        "    while 'fdbqueue.tasks.ending' not in sys.modules: time.sleep(0.05)\n"
        "q = fdbqueue.TaskQueue.open(db, name); print(json.dumps(q.take(db, timeout=60).data))",
    ),
    "a group ends, and its last task starts": (
        "q = fdbqueue.TaskQueue.create(db, name)\n"
        "group = fdbqueue.Group.create(db, then=(q, 'last'))\n"
        "q.put(db, 'member', group=group); group.close(db)",
        "q = fdbqueue.TaskQueue.open(db, name); q.ack(db, q.take(db, timeout=60))\n"
        "print(json.dumps(q.take(db, timeout=60).data))",
    ),
    "a schedule fires": (
        "q = fdbqueue.TaskQueue.create(db, name)\n"
        "fdbqueue.Schedule.create(db, name, every=1, queue=name, data='fired')",
        "q = fdbqueue.TaskQueue.open(db, name); print(json.dumps(q.take(db, timeout=60).data))",
    ),
    "an old lock of an element ends": (
        "q = fdbqueue.ElementQueue.named(db, name, {'body': 'string'})\n"
        "q.lock(db, q.add(db, {'body': 'locked'}))",
        "q = fdbqueue.ElementQueue.named(db, name, {'body': 'string'})\n"
        "(element,) = q.names(db)\n"
        "while not q.lock(db, element): q.purge(db, maxlock=1)\n"
        "print(json.dumps(q.get(db, element)['body']))",
    ),
    "a dead owner's item comes back": (
        "q = fdbqueue.PersistentQueue(db, name, owner='ada'); q.put('back'); q.get()",
        "q = fdbqueue.PersistentQueue(db, name, owner='ada'); print(json.dumps(q.get(timeout=60)))",
    ),
}
ANSWERS = {"a group": "last", "a schedule": "fired", "an old lock": "locked", "a dead": "back"}


@pytest.mark.parametrize("engine", ["embedded"] if CLUSTER_FILE is None else ["embedded", "fdb"])
@pytest.mark.parametrize("row", ROWS)
def test_one_name_suffices(row: str, engine: str, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}" if engine == "embedded" else f"fdb:{CLUSTER_FILE}"
    name = f"test-{os.urandom(6).hex()}"
    lost, found = ROWS[row]
    killed = run(f"{FIRST}{lost}\n{DIE}", url, name)
    assert killed.returncode == -9, killed.stderr
    answered = run(FIRST + found, url, name)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout) == next(ANSWERS[begin] for begin in ANSWERS if row.startswith(begin))


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
