"""How long fdbqueue takes to start: python -m benchmarks.start_up

Each row is the median of RUNS fresh processes over that of its baseline, which ran in turn with it: processor
time, or wall time for a put, which waits for the disk.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = 15
PYTHON = (sys.executable, "-c")
PROGRAM = (sys.executable, "-m", "fdbqueue", "--url", "embedded:data")


@dataclass(frozen=True)
class Row:
    name: str
    command: Sequence[str]
    baseline: Sequence[str]
    is_wall: bool = False


ROWS = (
    Row(
        "import fdbqueue",
        (*PYTHON, "import fdbqueue"),
        (*PYTHON, "import fdb, lmdb, msgspec, sortedcontainers"),
    ),
    Row("fdbqueue --help", (*PROGRAM, "--help"), (*PYTHON, "import click")),
    Row("fdbqueue put", (*PROGRAM, "put", "jobs", "1"), (*PYTHON, "import fdb, lmdb, msgspec"), is_wall=True),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        seconds((*PROGRAM, "create", "jobs"), place, is_wall=True)
        print(f"{'':24}{'ms':>10}{'baseline':>10}{'ratio':>8}")
        for row in ROWS:
            pairs = [
                [seconds(command, place, row.is_wall) for command in (row.command, row.baseline)]
                for _ in range(RUNS)
            ]
            ours, theirs = (1_000 * statistics.median(times) for times in zip(*pairs, strict=True))
            print(f"{row.name:24}{ours:10.0f}{theirs:10.0f}{ours / theirs:8.1f}", flush=True)


def seconds(command: Sequence[str], place: str, is_wall: bool) -> float:
    """The time of one process, all of its children included."""
    root = str(Path(__file__).parents[1])
    began, used = time.monotonic(), _used_s()
    subprocess.run(
        command, cwd=place, env=os.environ | {"PYTHONPATH": root}, stdout=subprocess.DEVNULL, check=True
    )
    return time.monotonic() - began if is_wall else _used_s() - used


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
