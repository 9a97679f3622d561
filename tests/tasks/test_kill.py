"""Workers die by SIGKILL throughout: every task is acked exactly once, and the statistics know it."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fdbqueue
from fdbqueue import TaskQueue
from tests.tasks.workers import EFFECTS, NAME

PROGRAM = """
import sys, time, random, os
from pathlib import Path
from tests.tasks.workers import Crowd, fork, produce

directory, tasks, size, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
producer = fork(produce, directory, 0, tasks)
crowd = Crowd(directory, size)
until = time.monotonic() + seconds
while time.monotonic() < until:
    time.sleep(random.uniform(0.05, 0.3))
    crowd.kill_one()
assert os.waitstatus_to_exitcode(os.waitpid(producer, 0)[1]) == 0
codes = crowd.finish(within_s=300)
assert codes == [0] * size, codes
print(crowd.killed)
"""


def test_killed_workers_lose_nothing_and_double_nothing(
    tmp_path: Path, rounds: Callable[[object, object], tuple[int, int, float]]
) -> None:
    tasks, size, seconds = rounds((600, 4, 3.0), (20_000, 16, 60.0))
    directory = tmp_path / "data"
    with fdbqueue.open(f"embedded:{directory}") as db:
        TaskQueue.create(db, NAME, "fifottl", ttr=20)
    command = [sys.executable, "-c", PROGRAM, str(directory), str(tasks), str(size), str(seconds)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5
    with fdbqueue.open(f"embedded:{directory}") as db:
        effects = Counter(bytes(row.value)[0] for row in db.get_range_startswith(EFFECTS))
        found = TaskQueue.open(db, NAME).statistics(db)
    assert effects == {1: tasks}
    calls = found["calls"]
    assert found["tasks"] == {"ready": 0, "taken": 0, "buried": 0, "delayed": 0, "done": tasks, "total": 0}
    assert (calls["put"], calls["ack"]) == (tasks, tasks)
    # Whatever was taken and not acked, came back in one of these ways.
    assert calls["take"] == tasks + calls["release"] + calls["ttr"] + calls["bury"]
    assert calls["bury"] == calls["kick"]
