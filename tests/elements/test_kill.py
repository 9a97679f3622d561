"""Consumers die by SIGKILL throughout: every element has its effect exactly once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fdbqueue
from tests.elements.workers import EFFECTS, queue

PROGRAM = """
import os, random, signal, sys, time
from pathlib import Path
from tests.elements.workers import consume, produce, progress
from tests.tasks.workers import fork

directory, count, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
writers = [fork(produce, directory, number, count) for number in range(4)]
consumers = [fork(consume, directory, 4 * count) for _ in range(4)]
for kill in range(kills):
    while progress(directory) < 4 * count * kill // (kills + 1):
        time.sleep(0.005)
    victim = consumers.pop(random.randrange(4))
    os.kill(victim, signal.SIGKILL)
    _, status = os.waitpid(victim, 0)
    consumers.append(fork(consume, directory, 4 * count))
    print(os.waitstatus_to_exitcode(status))
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in (*writers, *consumers)]
assert codes == [0] * 8, codes
"""


def test_killed_consumers_lose_nothing_and_double_nothing(
    tmp_path: Path, rounds: Callable[[object, object], tuple[int, int]]
) -> None:
    """Four writers, four consumers; in the long version two thousand elements."""
    count, kills = rounds((50, 8), (500, 60))
    directory = tmp_path / "data"
    with fdbqueue.open(f"embedded:{directory}"):
        pass  # made before the processes come
    command = [sys.executable, "-c", PROGRAM, str(directory), str(count), str(kills)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split().count("-9") >= 5, "most were at work when they were killed"
    with fdbqueue.open(f"embedded:{directory}") as db:
        effects = {row.key[len(EFFECTS) :].decode(): row.value for row in db.get_range_startswith(EFFECTS)}
        assert effects == {f"{writer}.{number}": b"\x01" for writer in range(4) for number in range(count)}
        assert (queue().count(db), list(queue().names(db))) == (0, [])
